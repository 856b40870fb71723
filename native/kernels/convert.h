// Conversion between float and the formats of 16 bits, which are passed as those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace luwu::kernels {

/// Rounds `count` floats to nearest, ties to even. Overflow gives infinity, every NaN gives the quiet NaN 0xFFFF, as in
/// torch on x86. `source` and `target` must not overlap.
void float_to_bfloat16(const float* source, std::uint16_t* target, std::size_t count);

/// Widens `count` values exactly. `source` and `target` must not overlap.
void bfloat16_to_float(const std::uint16_t* source, float* target, std::size_t count);

/// Rounds `count` floats to nearest, ties to even. Overflow gives infinity, a NaN the quiet NaN with the upper part of
/// its payload, as the processors' own conversion does. `source` and `target` must not overlap.
void float_to_float16(const float* source, std::uint16_t* target, std::size_t count);

/// Widens `count` values exactly; NaNs become quiet. `source` and `target` must not overlap.
void float16_to_float(const std::uint16_t* source, float* target, std::size_t count);

/// Of float_to_bfloat16() and float_to_float16() the one for `dtype`, which has 16 bits.
void float_to_low(Dtype dtype, const float* source, std::uint16_t* target, std::size_t count);

/// Of bfloat16_to_float() and float16_to_float() the one for `dtype`, which has 16 bits.
void low_to_float(Dtype dtype, const std::uint16_t* source, float* target, std::size_t count);

}  // namespace luwu::kernels
