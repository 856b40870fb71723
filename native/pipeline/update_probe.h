// Speed of step 5 on this machine: whole chunks, checksums included, on all threads at once, from memory that no cache
// holds.
#pragma once

#include <cstdint>

#include "kernels/optimizer.h"

namespace luwu::pipeline {

struct UpdateProbe {
    const kernels::Optimizer* optimizer = &kernels::adamw;
    kernels::Dtype dtype = kernels::Dtype::float32;  // of parameters and gradients
    std::uint32_t workers = 1;                       // whose gradients are added up
    std::uint32_t trims = 0;                         // of their values, at each end
    std::uint32_t threads = 1;
    std::uint64_t chunk_elements = 1U << 18U;
    std::uint64_t elements = 1U << 24U;  // of all threads together
    bool verify = false;                 // checksums of states that came from the disk, too
    double seconds = 1;
};

struct UpdateRate {
    std::uint64_t elements = 0;
    double seconds = 0;
};

// Throws Error(invalid) for a count that is 0, or no elements for each thread.
[[nodiscard]] UpdateRate measure_update(const UpdateProbe& probe);

}  // namespace luwu::pipeline
