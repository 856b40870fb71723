// Arenas: memory that the gradients of one worker are pushed from, or arrive in.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/residency.h"
#include "store/layout.h"

namespace luwu::fabric {

// Offset of a rank's gradients in its arena. The gradients that one update reads together lie at the same place of
// several arenas. At the same place of a page they would share too few lines of the first-level cache: summing eight
// workers' gradients on one core took 27 ms instead of 20.
[[nodiscard]] constexpr std::uint64_t arena_start(std::uint32_t rank) { return rank % 16 * (17 * 64); }
inline constexpr std::uint64_t kArenaSlackBytes = 4 * store::kPage;  // what an arena's file has for that
static_assert(arena_start(15) <= kArenaSlackBytes);

// The parameters of each block; in a window they take whole pages.
[[nodiscard]] std::vector<std::uint64_t> bytes_of_blocks(const store::StoreShape& shape);
// Size of the file of any worker's arena. First values travel through the arena as fp32, whatever the gradients' dtype.
// Pages that nobody writes cost nothing.
[[nodiscard]] std::uint64_t arena_file_bytes(const store::StoreShape& shape, const schedule::ResidencyPlan& plan);

}  // namespace luwu::fabric
