// Parameters that the server reads before anyone asks for them: those that a worker's pass comes to next. The decision
// is here, apart from the pipeline, so that a simulation of a server decides as the server does.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/pass.h"
#include "schedule/window_cache.h"

namespace luwu::schedule {

inline constexpr std::uint64_t kPrefetchPulls = 4;  // how far along the pass parameters are read ahead

// Gives the next block that a worker will pull, and that is absent, a place in the window, and returns it; it is marked
// as being read. nullopt: there is nothing to read, or no place for it. `allowed` tells whether a block may be read
// now.
template <typename Allowed>
[[nodiscard]] std::optional<std::uint32_t> place_ahead(const Pass& pass, WindowCache& window, std::uint32_t worker,
                                                       Allowed allowed) {
    for (std::uint64_t ahead = 0; ahead < kPrefetchPulls; ++ahead) {
        const auto block = pass.upcoming(worker, ahead);
        if (!block) return std::nullopt;
        if (window.state(*block) != WindowCache::State::absent || !allowed(*block)) continue;
        if (!window.place(*block, ahead)) return std::nullopt;
        return block;
    }
    return std::nullopt;
}

}  // namespace luwu::schedule
