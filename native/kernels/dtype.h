// The number formats that parameters and gradients come in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

enum class Dtype : std::uint8_t { float32, bfloat16, float16 };
inline constexpr std::size_t kDtypes = 3;

/// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

}  // namespace luwu::kernels
