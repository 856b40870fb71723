// The gradients of several workers, read where the workers left them.
#pragma once

#include <cstddef>

#include "kernels/dtype.h"

namespace luwu::kernels {

/// `count` (at least one) buffers of one dtype. They are summed in their order in float32, then multiplied by `scale`:
/// the same bits whichever buffer was filled first.
struct Gradients {
    const void* const* buffers;
    std::size_t count;
    Dtype dtype;
    float scale;
};

}  // namespace luwu::kernels
