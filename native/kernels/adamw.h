// AdamW in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gradients.h"
#include "kernels/instruction_set.h"

namespace luwu::kernels {

/// The constants of one optimizer step, in double precision; bias_correctionK is 1 - betaK^t.
struct AdamWStep {
    double learning_rate;
    double beta1;
    double beta2;
    double epsilon;
    double weight_decay;
    double bias_correction1;
    double bias_correction2;
};

/// `t` counts steps from one. Powers are taken by repeated multiplication, so no mathematics library changes the bits.
[[nodiscard]] AdamWStep make_adamw_step(double learning_rate, double beta1, double beta2, double epsilon,
                                        double weight_decay, std::uint64_t t);

/// Updates `elements` float32 values of master, m and v in place and writes their bfloat16 copy to `low` unless it is
/// null. The mathematics are those of torch.optim.AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization,
/// 2019), the bits are the same on every instruction set. Pointers need their element's alignment only; buffers must
/// not overlap. Returns false when a scaled, summed gradient is not finite: all contents are then unspecified.
[[nodiscard]] bool adamw_update(float* master, float* m, float* v, std::uint16_t* low, const Gradients& gradients,
                                std::size_t elements, const AdamWStep& step);

}  // namespace luwu::kernels
