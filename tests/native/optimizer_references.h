// Definition of each optimizer, in double precision and without regard to speed.
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

// Distance that Adam moves; takes the gradient into both moments.
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

inline void reference_adam(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                           std::uint64_t t) {
    master -= adam_move(states, gradient + by[4] * master, by, t);
}

inline void reference_sgd(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                          std::uint64_t t) {
    const auto [learning_rate, momentum, dampening, decay, nesterov, unused] = by;
    double direction = gradient + decay * master;
    if (momentum != 0) {
        states[0] = t == 1 ? direction : momentum * states[0] + (1 - dampening) * direction;
        direction = nesterov != 0 ? direction + momentum * states[0] : states[0];
    } else {
        states[0] = 0;
    }
    master -= learning_rate * direction;
}

inline void reference_lion(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                           std::uint64_t) {
    const auto [learning_rate, beta1, beta2, decay, unused, unused_too] = by;
    const double direction = beta1 * states[0] + (1 - beta1) * gradient;
    states[0] = beta2 * states[0] + (1 - beta2) * gradient;
    const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
    master -= learning_rate * (sign + decay * master);
}

inline void reference_adagrad(double& master, States& states, double gradient, const kernels::HyperParameters& by,
                              std::uint64_t t) {
    const auto [learning_rate, learning_rate_decay, decay, epsilon, initial, unused] = by;
    const double whole = gradient + decay * master;
    if (t == 1) states[0] += initial;  // which is 0 before the first step
    states[0] += whole * whole;
    master -= learning_rate / (1 + static_cast<double>(t - 1) * learning_rate_decay) * whole /
              (std::sqrt(states[0]) + epsilon);
}

// More than one case for what settings switch.
inline const std::vector<OptimizerCase>& optimizer_cases() {
    static const std::vector<OptimizerCase> cases{
        {"adamw", {1e-2, 0.9, 0.999, 1e-8, 0.1}, 3, reference_adamw},
        {"adamw", {1e-2, 0.8, 0.95, 1e-6, 0.0}, 1000, reference_adamw},
        {"adamw8bit", {1e-2, 0.9, 0.999, 1e-8, 0.1}, 3, reference_adamw},
        {"adam", {1e-2, 0.9, 0.999, 1e-8, 0.1}, 3, reference_adam},
        {"sgd", {1e-2}, 2, reference_sgd},
        {"sgd", {1e-2, 0.9, 0.0, 0.1}, 2, reference_sgd},
        {"sgd", {1e-2, 0.9, 0.5, 0.1}, 2, reference_sgd},
        {"sgd", {1e-2, 0.9, 0.0, 0.1, 1}, 2, reference_sgd},
        {"lion", {1e-2, 0.9, 0.99, 0.1}, 3, reference_lion},
        {"adagrad", {1e-2, 0.1, 0.1, 1e-10, 0.5}, 1, reference_adagrad},
        {"adagrad", {1e-2, 0.1, 0.1, 1e-10, 0.5}, 7, reference_adagrad},
    };
    return cases;
}

}  // namespace luwu::test
