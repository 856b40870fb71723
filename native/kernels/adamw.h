// AdamW's rule, for its two optimizers: with states as they are, and with states of 8 bits.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/moments.h"

namespace luwu::kernels {

/// The mathematics of torch.optim.AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019).
/// Settings: lr, beta1, beta2, eps, weight_decay. States: m, v.
struct AdamW {
    static constexpr std::size_t kStates = 2;
    float decay;
    Moments moments;

    static AdamW at(const HyperParameters& by, std::uint64_t t) {
        return {static_cast<float>(1.0 - by[0] * by[4]), Moments::at(by[0], by[1], by[2], by[3], t)};
    }

    LUWU_INLINE float apply(float master, float gradient, float& m, float& v) const {
        return decay * master - moments.apply(gradient, m, v);
    }
};

}  // namespace luwu::kernels
