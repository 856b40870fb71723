// Blocks' parameters in memory, and their places: pinned ones, and slots evicted by next use. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/pass.h"
#include "schedule/residency.h"

namespace luwu::schedule {

class WindowCache {
  public:
    enum class State : std::uint8_t { absent, reading, resident };

    WindowCache(const ResidencyPlan& plan, const Pass& pass);

    [[nodiscard]] State state(std::uint32_t block) const { return entries_[block].state; }
    [[nodiscard]] bool pinned(std::uint32_t block) const { return entries_[block].pinned; }
    [[nodiscard]] std::uint64_t offset(std::uint32_t block) const { return entries_[block].offset; }
    [[nodiscard]] std::uint32_t holds(std::uint32_t block) const { return entries_[block].holds; }

    // Gives an absent block a place and marks it as being read. A slot is taken from the unheld block whose next use is
    // farthest; with `sooner_than` only if that is farther than this number of pulls. False: no place now, try again
    // later.
    [[nodiscard]] bool place(std::uint32_t block, std::optional<std::uint64_t> sooner_than = std::nullopt);
    void read_done(std::uint32_t block) { entries_[block].state = State::resident; }
    void hold(std::uint32_t block) { ++entries_[block].holds; }
    void unhold(std::uint32_t block);
    // Marks a block whose update comes before its next pull. Such a block is evicted last.
    void set_awaits_update(std::uint32_t block, bool awaits) { entries_[block].awaits_update = awaits; }
    // The memory no longer holds a valid version (a step was rolled back): read it again before the next use.
    void invalidate(std::uint32_t block);

  private:
    struct Entry {
        State state = State::absent;
        bool pinned = false;
        std::int32_t slot = -1;
        std::uint64_t offset = 0;
        std::uint32_t holds = 0;
        bool awaits_update = false;
        std::uint64_t released_at = 0;  // orders blocks of unknown next use: the least recently released goes first
    };

    [[nodiscard]] std::optional<std::uint32_t> free_slot() const;
    [[nodiscard]] std::optional<std::uint32_t> victim(std::optional<std::uint64_t> sooner_than) const;

    const Pass& pass_;
    std::uint64_t slots_offset_;
    std::uint64_t slot_bytes_;
    std::vector<Entry> entries_;
    std::vector<std::int64_t> slot_owner_;  // block or -1
    std::uint64_t clock_ = 0;
};

}  // namespace luwu::schedule
