// A float32 as the bfloat16 nearest to it and the 16 bits that this lacks, and back. Internal to the kernels.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/multiversion.h"

namespace luwu::kernels {

/// Ties are rounded away from zero. NaNs become 0xFFFF with a remainder of 0.
LUWU_INLINE void split_values(const float* __restrict from, std::uint16_t* __restrict copy,
                              std::uint16_t* __restrict remainder, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(from[i]);
        const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
        copy[i] = static_cast<std::uint16_t>(is_nan ? 0xFFFFU : (bits + 0x8000U) >> 16);
        remainder[i] = static_cast<std::uint16_t>(is_nan ? 0U : bits);
    }
}

/// Inverse of split_values().
LUWU_INLINE void join_values(const std::uint16_t* __restrict copy, const std::uint16_t* __restrict remainder,
                             float* __restrict to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t rounded_up = std::uint32_t{remainder[i]} >> 15 << 16;
        to[i] = std::bit_cast<float>((std::uint32_t{copy[i]} << 16) - rounded_up + remainder[i]);
    }
}

}  // namespace luwu::kernels
