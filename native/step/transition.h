// A table of the transitions of a state, and how it is looked up.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

namespace luwu::step {

template <typename State, typename Event>
struct Transition {
    State from;
    Event event;
    State next;
};

// Nothing where the table has no row.
template <typename State, typename Event, std::size_t kRows>
[[nodiscard]] constexpr std::optional<State> next_in(const std::array<Transition<State, Event>, kRows>& table,
                                                     State from, Event event) {
    for (const auto& row : table) {
        if (row.from == from && row.event == event) return row.next;
    }
    return std::nullopt;
}

}  // namespace luwu::step
