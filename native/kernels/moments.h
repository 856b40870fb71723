// The running means of gradients and of their squares that Adam and AdamW share. Internal to the kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/multiversion.h"

namespace luwu::kernels {

/// By repeated multiplication, so that no mathematics library changes the bits.
inline double power(double base, std::uint64_t exponent) {
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1U) != 0) result *= base;
        base *= base;
    }
    return result;
}

/// Constants of one step; the moments' bias corrections are in step_size and inverse_root_correction2.
struct Moments {
    float beta1, new_share1;
    float beta2, new_share2;
    float step_size;
    float inverse_root_correction2;
    float epsilon;

    static Moments at(double learning_rate, double beta1, double beta2, double epsilon, std::uint64_t t) {
        return {
            .beta1 = static_cast<float>(beta1),
            .new_share1 = static_cast<float>(1.0 - beta1),
            .beta2 = static_cast<float>(beta2),
            .new_share2 = static_cast<float>(1.0 - beta2),
            .step_size = static_cast<float>(learning_rate / (1.0 - power(beta1, t))),
            .inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(beta2, t))),
            .epsilon = static_cast<float>(epsilon),
        };
    }

    /// Takes a gradient into both moments; how far the master moves against it.
    LUWU_INLINE float apply(float gradient, float& m, float& v) const {
        const float first = beta1 * m + new_share1 * gradient;
        const float second = beta2 * v + new_share2 * (gradient * gradient);
        const float root = __builtin_sqrtf(second) * inverse_root_correction2;
        m = first;
        v = second;
        return step_size * first / (root + epsilon);
    }
};

}  // namespace luwu::kernels
