// Sums workers' gradients into one buffer.
#pragma once

#include <cstddef>

#include "kernels/gradients.h"

namespace luwu::kernels {

/// Writes the scaled sum of `elements` gradients to `out`, which must not overlap any of them.
void sum_gradients(float* out, const Gradients& gradients, std::size_t elements);

}  // namespace luwu::kernels
