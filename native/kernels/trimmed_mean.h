// The mean of workers' gradients without the largest and the smallest, element by element: a worker that sends nonsense
// has little weight. With as many left out as can be it is the median. Both are of Yin, Chen, Ramchandran and Bartlett,
// "Byzantine-robust distributed learning: towards optimal statistical rates" (2018).
#pragma once

#include <cstddef>

#include "kernels/gradients.h"

namespace luwu::kernels {

/// The most workers whose gradients are trimmed.
inline constexpr std::size_t kMostTrimmed = 64;

/// True where so many workers' values can be without the `trims` smallest and largest.
[[nodiscard]] constexpr bool can_trim(std::size_t workers, std::size_t trims) {
    return workers > 2 * trims && workers <= kMostTrimmed;
}

/// Writes to `out`, for each of `elements`, the mean of the workers' values in float32 without the `trims` smallest and
/// the `trims` largest of them, where can_trim(). Values that are not a number count as positive infinity. `out` must
/// not overlap any buffer. The gradients' scale is not used.
void trimmed_mean(float* out, const Gradients& gradients, std::size_t trims, std::size_t elements);

}  // namespace luwu::kernels
