#include "kernels/elementwise.h"

namespace luwu::kernels {

namespace {

/// The mathematics of torch.optim.SGD, which differ from Sutskever et al. (On the importance of initialization and
/// momentum in deep learning, 2013) in that the learning rate is no part of the momentum.
/// Settings: lr, momentum, dampening, weight_decay, nesterov (0 or 1). State: momentum.
struct Sgd {
    static constexpr std::size_t kStates = 1;
    float learning_rate;
    float decay;
    float kept, new_share;                 // of the momentum, of the gradient in it
    float gradient_share, momentum_share;  // of the direction

    static Sgd at(const HyperParameters& by, std::uint64_t t) {
        const double momentum = by[1];
        const bool has_momentum = momentum != 0.0;
        const bool is_nesterov = by[4] != 0.0;
        // The first gradient is the first momentum, undamped. Without momentum it stays 0, for one that starts later.
        const double new_share = !has_momentum ? 0.0 : t == 1 ? 1.0 : 1.0 - by[2];
        return {
            .learning_rate = static_cast<float>(by[0]),
            .decay = static_cast<float>(by[3]),
            .kept = static_cast<float>(momentum),
            .new_share = static_cast<float>(new_share),
            .gradient_share = !has_momentum || is_nesterov ? 1.0F : 0.0F,
            .momentum_share = is_nesterov ? static_cast<float>(momentum) : 1.0F,
        };
    }

    LUWU_INLINE float apply(float master, float gradient, float& momentum) const {
        const float whole = gradient + decay * master;
        momentum = kept * momentum + new_share * whole;
        return master - learning_rate * (gradient_share * whole + momentum_share * momentum);
    }
};

}  // namespace

constinit const Optimizer sgd = make_optimizer<Sgd>("sgd", 2, 5, kOneFloat);

}  // namespace luwu::kernels
