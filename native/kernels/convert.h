// Conversion between float and the formats of 16 bits, which are passed as those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace luwu::kernels {

/// Rounds `count` floats to nearest, ties to even, in bfloat16 or float16, which `dtype` says. Overflow gives infinity.
/// A NaN gives the quiet NaN 0xFFFF as bfloat16, as in torch on x86; as float16 it keeps its sign and the upper part of
/// its payload and becomes quiet, as the processors' own conversion has it. The buffers must not overlap.
void float_to_low(Dtype dtype, const float* source, std::uint16_t* target, std::size_t count);

/// Widens `count` values of bfloat16 or float16 exactly; NaNs of float16 become quiet. The buffers must not overlap.
void low_to_float(Dtype dtype, const std::uint16_t* source, float* target, std::size_t count);

}  // namespace luwu::kernels
