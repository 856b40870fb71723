// A float32 master in two halves: the bfloat16 copy that workers pull, and the 16 bits that it lacks. Two bytes beside
// the copy then keep the master exactly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

/// Rounds `count` masters to nearest; ties go away from zero, since then the lower 16 bits, kept as they are, tell
/// which way the upper ones went. A master that is not a number becomes the copy 0xFFFF and comes back as one that is
/// not.
void split_master(const float* master, std::uint16_t* copy, std::uint16_t* remainder, std::size_t count);

/// Puts the halves together again, exactly.
void join_master(const std::uint16_t* copy, const std::uint16_t* remainder, float* master, std::size_t count);

}  // namespace luwu::kernels
