// What each optimizer is defined to do, in double precision and without any haste.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/optimizer.h"

namespace luwu::test {

using States = std::array<double, kernels::kMaximumStates>;
using Reference = void (*)(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                           std::uint64_t t);

struct OptimizerCase {
    const char* optimizer;
    kernels::HyperParameters settings;
    std::uint64_t t;
    Reference reference;
};

// How far Adam moves; takes the gradient into both moments.
inline double adam_move(States& states, double gradient, const kernels::HyperParameters& by, std::uint64_t t) {
    const auto [learning_rate, beta1, beta2, epsilon, decay, unused] = by;
    const auto steps = static_cast<double>(t);
    states[0] = beta1 * states[0] + (1 - beta1) * gradient;
    states[1] = beta2 * states[1] + (1 - beta2) * gradient * gradient;
    const double m = states[0] / (1 - std::pow(beta1, steps));
    const double v = states[1] / (1 - std::pow(beta2, steps));
    return learning_rate * m / (std::sqrt(v) + epsilon);
}

inline void reference_adamw(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                            std::uint64_t t) {
    const double move = adam_move(states, gradient, by, t);
    master = master * (1 - by[0] * by[4]) - move;
}

inline const std::vector<OptimizerCase>& optimizer_cases() {
    static const std::vector<OptimizerCase> cases{
        {"adamw", {1e-2, 0.9, 0.999, 1e-8, 0.1}, 3, reference_adamw},
        {"adamw", {1e-2, 0.8, 0.95, 1e-6, 0.0}, 1000, reference_adamw},
    };
    return cases;
}

}  // namespace luwu::test
