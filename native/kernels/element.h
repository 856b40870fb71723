// Update of one element. Internal to the kernels.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/multiversion.h"

namespace luwu::kernels {

/// A bfloat16 is its 16 bits, and so is a float16; this type tells them apart.
using Bfloat16 = std::uint16_t;
enum class Float16 : std::uint16_t {};

/// Calls work.operator()<Element>() with the type that elements of this dtype have.
template <class Work>
auto with_element(Dtype dtype, const Work& work) {
    if (dtype == Dtype::float32) return work.template operator()<float>();
    if (dtype == Dtype::bfloat16) return work.template operator()<Bfloat16>();
    return work.template operator()<Float16>();
}

LUWU_INLINE float widen(float value) { return value; }

LUWU_INLINE float widen(Bfloat16 bfloat16) { return std::bit_cast<float>(std::uint32_t{bfloat16} << 16); }

/// Exact. NaNs keep their payload and become quiet, as F16C has it. No number on the way is a subnormal float.
LUWU_INLINE float widen(Float16 float16) {
    const auto bits = static_cast<std::uint32_t>(float16);
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const std::uint32_t again = magnitude >= 0x7C00U ? 112U << 23 : 0U;  // infinite or not a number: all ones
    const std::uint32_t quiet = magnitude > 0x7C00U ? 0x00400000U : 0U;
    const std::uint32_t normal = ((magnitude << 13) + (112U << 23) + again) | quiet;
    const float counted = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
    const std::uint32_t found = magnitude < 0x0400U ? std::bit_cast<std::uint32_t>(counted) : normal;
    return std::bit_cast<float>(found | (bits & 0x8000U) << 16);
}

template <class Low>
LUWU_INLINE Low narrow(float value);

/// Rounds to nearest, ties to even. Every NaN becomes 0xFFFF, as in torch on x86.
template <>
LUWU_INLINE Bfloat16 narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>(is_nan ? 0xFFFFU : rounded);
}

/// Rounds to nearest, ties to even: overflow gives infinity, small magnitudes become subnormal. NaNs keep the upper
/// part of their payload and become quiet, as F16C has it.
template <>
LUWU_INLINE Float16 narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    // Adding a number whose last place is worth 2^-24, as a subnormal's is, rounds to that.
    const float moved = std::bit_cast<float>(magnitude) + 0.5F;
    const std::uint32_t small = std::bit_cast<std::uint32_t>(moved) - std::bit_cast<std::uint32_t>(0.5F);
    const std::uint32_t rounded = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
    const std::uint32_t normal = magnitude >= 0x477FF000U ? 0x7C00U : rounded;  // from 65520 on
    const std::uint32_t number = magnitude < 0x38800000U ? small : normal;      // below 2^-14
    const std::uint32_t nan = 0x7E00U | (magnitude >> 13 & 0x3FFU);
    const std::uint32_t found = magnitude > 0x7F800000U ? nan : number;
    return static_cast<Float16>(found | (bits >> 16 & 0x8000U));
}

/// The top bit is set when `value` is infinite or not a number; such words are collected with `|`.
LUWU_INLINE std::uint32_t not_finite(float value) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) + 0x00800000U;
}

/// Elements between two rounds of prefetching, and how far ahead those reach. Measured on Zen 4, where this gains 5 to
/// 10 % over the hardware's own prefetching: longer groups, and reaching half or twice as far, gain less.
inline constexpr std::size_t kGroupElements = 32;
inline constexpr std::size_t kPrefetchElements = 128;
inline constexpr std::size_t kCacheLineBytes = 64;

/// Asks for the group that lies `kPrefetchElements` after the one at `group`, which may be outside any object.
template <bool to_write = false, class Element>
LUWU_INLINE void prefetch_group(const Element* group) {
    const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(group) + kPrefetchElements * sizeof(Element);
    for (std::size_t byte = 0; byte < kGroupElements * sizeof(Element); byte += kCacheLineBytes) {
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + byte), to_write ? 1 : 0);
    }
}

}  // namespace luwu::kernels
