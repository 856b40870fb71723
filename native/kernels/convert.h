// Conversion between float and bfloat16, which is passed as its 16 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

/// Rounds `count` floats to nearest, ties to even. Overflow gives infinity, every NaN gives the quiet NaN 0xFFFF, as in
/// torch on x86. `source` and `target` must not overlap.
void float_to_bfloat16(const float* source, std::uint16_t* target, std::size_t count);

/// Widens `count` values exactly. `source` and `target` must not overlap.
void bfloat16_to_float(const std::uint16_t* source, float* target, std::size_t count);

}  // namespace luwu::kernels
