#include "kernels/elementwise.h"
#include "kernels/moments.h"

namespace luwu::kernels {

namespace {

/// The mathematics of torch.optim.Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015): weight decay
/// is part of the gradient. Settings: lr, beta1, beta2, eps, weight_decay. States: m, v.
struct Adam {
    static constexpr std::size_t kStates = 2;
    float decay;
    Moments moments;

    static Adam at(const HyperParameters& by, std::uint64_t t) {
        return {static_cast<float>(by[4]), Moments::at(by[0], by[1], by[2], by[3], t)};
    }

    LUWU_INLINE float apply(float master, float gradient, float& m, float& v) const {
        return master - moments.apply(gradient + decay * master, m, v);
    }
};

}  // namespace

constinit const Optimizer adam = make_optimizer<Adam>("adam", 1, 5, kTwoFloats);

}  // namespace luwu::kernels
