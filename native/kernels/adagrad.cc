#include "kernels/elementwise.h"

namespace luwu::kernels {

namespace {

/// The mathematics of torch.optim.Adagrad (Duchi et al., Adaptive Subgradient Methods, 2011).
/// Settings: lr, lr_decay, weight_decay, eps, initial_accumulator_value. State: sum of squared gradients.
struct Adagrad {
    static constexpr std::size_t kStates = 1;
    float step_size;
    float decay;
    float epsilon;
    float initial;  // what the sum begins with: 0 after the first step

    static Adagrad at(const HyperParameters& by, std::uint64_t t) {
        return {
            .step_size = static_cast<float>(by[0] / (1.0 + static_cast<double>(t - 1) * by[1])),
            .decay = static_cast<float>(by[2]),
            .epsilon = static_cast<float>(by[3]),
            .initial = t == 1 ? static_cast<float>(by[4]) : 0.0F,
        };
    }

    LUWU_INLINE float apply(float master, float gradient, float& sum) const {
        const float whole = gradient + decay * master;
        sum = (sum + initial) + whole * whole;
        return master - step_size * whole / (__builtin_sqrtf(sum) + epsilon);
    }
};

}  // namespace

constinit const Optimizer adagrad = make_optimizer<Adagrad>("adagrad", 4, 5, kOneFloat);

}  // namespace luwu::kernels
