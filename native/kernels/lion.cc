#include "kernels/elementwise.h"

namespace luwu::kernels {

namespace {

/// Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, arXiv 2302.06675, algorithm 2).
/// Settings: lr, beta1, beta2, weight_decay. State: momentum.
struct Lion {
    static constexpr std::size_t kStates = 1;
    float learning_rate;
    float decay;
    float beta1, new_share1;
    float beta2, new_share2;

    static Lion at(const HyperParameters& by, std::uint64_t) {
        return {
            .learning_rate = static_cast<float>(by[0]),
            .decay = static_cast<float>(1.0 - by[0] * by[3]),
            .beta1 = static_cast<float>(by[1]),
            .new_share1 = static_cast<float>(1.0 - by[1]),
            .beta2 = static_cast<float>(by[2]),
            .new_share2 = static_cast<float>(1.0 - by[2]),
        };
    }

    LUWU_INLINE float apply(float master, float gradient, float& momentum) const {
        const float direction = beta1 * momentum + new_share1 * gradient;
        momentum = beta2 * momentum + new_share2 * gradient;
        const float up = direction > 0.0F ? learning_rate : 0.0F;
        const float down = direction < 0.0F ? learning_rate : 0.0F;
        return decay * master - (up - down);
    }
};

}  // namespace

constinit const Optimizer lion = make_optimizer<Lion>("lion", 3, 4, kOneFloat);

}  // namespace luwu::kernels
