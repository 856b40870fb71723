// Keeps the workers' gradients for an update that comes later, and measures them.
#pragma once

#include <cstddef>

#include "kernels/gradients.h"

namespace luwu::kernels {

/// Writes what a later update needs of `elements` gradients to `kept`: of one buffer its contents, in its dtype, of
/// several their unscaled sum in float32. `kept` must not overlap any of them. Returns the sum of the squares of the
/// scaled, summed gradient, added up in double precision in an order that depends on `elements` alone: the same bits on
/// every instruction set. It is finite exactly when every scaled, summed gradient is.
[[nodiscard]] double keep_gradients(void* kept, const Gradients& gradients, std::size_t elements);

/// The dtype of what keep_gradients() writes.
[[nodiscard]] constexpr Dtype kept_dtype(std::size_t buffers, Dtype gradients) {
    return buffers == 1 ? gradients : Dtype::float32;
}

}  // namespace luwu::kernels
