#include "kernels/adamw.h"

#include <array>
#include <cmath>

#include "kernels/gather.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

/// A step's constants as the loop wants them.
struct Coefficients {
    float decay;
    float beta1, new_share1;
    float beta2, new_share2;
    float step_size;
    float inverse_root_correction2;
    float epsilon;
    float scale;
};

Coefficients make_coefficients(const AdamWStep& step, float scale) {
    return {
        .decay = static_cast<float>(1.0 - step.learning_rate * step.weight_decay),
        .beta1 = static_cast<float>(step.beta1),
        .new_share1 = static_cast<float>(1.0 - step.beta1),
        .beta2 = static_cast<float>(step.beta2),
        .new_share2 = static_cast<float>(1.0 - step.beta2),
        .step_size = static_cast<float>(step.learning_rate / step.bias_correction1),
        .inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2)),
        .epsilon = static_cast<float>(step.epsilon),
        .scale = scale,
    };
}

/// Collected not_finite() words, one for each place of a group: no reduction is wanted before the end of a tile.
struct Found {
    std::array<std::uint32_t, kGroupElements> words{};

    LUWU_INLINE bool any() const {
        std::uint32_t all = 0;
        for (const std::uint32_t word : words) all |= word;
        return (all >> 31) != 0;
    }
};

/// The update itself, of at most a group.
template <bool writes_low, class Element>
LUWU_INLINE void update(float* __restrict master, float* __restrict m, float* __restrict v,
                        std::uint16_t* __restrict low, const Element* __restrict gradients, std::size_t elements,
                        const Coefficients by, std::uint32_t* __restrict found) {
    for (std::size_t i = 0; i < elements; ++i) {
        const float gradient = widen(gradients[i]) * by.scale;
        found[i] |= not_finite(gradient);
        const float first = by.beta1 * m[i] + by.new_share1 * gradient;
        const float second = by.beta2 * v[i] + by.new_share2 * (gradient * gradient);
        const float root = __builtin_sqrtf(second) * by.inverse_root_correction2;
        const float updated = by.decay * master[i] - by.step_size * first / (root + by.epsilon);
        m[i] = first;
        v[i] = second;
        master[i] = updated;
        if constexpr (writes_low) low[i] = narrow(updated);
    }
}

template <bool writes_low, class Element>
struct Update {
    float* master;
    float* m;
    float* v;
    std::uint16_t* low;
    const Gradients& gradients;
    std::size_t elements;
    Coefficients coefficients;

    LUWU_INLINE bool operator()() const { return gradients.count == 1 ? update_all<false>() : update_all<true>(); }

    template <bool gathers>
    LUWU_INLINE bool update_all() const {
        Found found;
        const Coefficients by = coefficients;
        std::size_t start = 0;
        for (; start + kGroupElements <= elements; start += kGroupElements) {
            update_group<gathers>(start, kGroupElements, by, found);
        }
        update_group<gathers>(start, elements - start, by, found);
        return !found.any();
    }

    template <bool gathers>
    LUWU_INLINE void update_group(std::size_t start, std::size_t count, const Coefficients& by, Found& found) const {
        prefetch_group<true>(master + start);
        prefetch_group<true>(m + start);
        prefetch_group<true>(v + start);
        std::uint16_t* const low_group = writes_low ? low + start : nullptr;
        // Not stored past the cache: that gained nothing here, and cost 10 % where a checksum is taken next.
        if constexpr (writes_low) prefetch_group<true>(low_group);
        if constexpr (gathers) {
            alignas(64) float sum[kGroupElements];
            gather<Element>(sum, gradients, start, count);
            update<writes_low>(master + start, m + start, v + start, low_group, sum, count, by, found.words.data());
        } else {
            const Element* const gradient = gradient_at<Element>(gradients, 0, start);
            prefetch_group(gradient);
            update<writes_low>(master + start, m + start, v + start, low_group, gradient, count, by,
                               found.words.data());
        }
    }
};

double power(double base, std::uint64_t exponent) {
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1U) != 0) result *= base;
        base *= base;
    }
    return result;
}

}  // namespace

AdamWStep make_adamw_step(double learning_rate, double beta1, double beta2, double epsilon, double weight_decay,
                          std::uint64_t t) {
    return {
        .learning_rate = learning_rate,
        .beta1 = beta1,
        .beta2 = beta2,
        .epsilon = epsilon,
        .weight_decay = weight_decay,
        .bias_correction1 = 1.0 - power(beta1, t),
        .bias_correction2 = 1.0 - power(beta2, t),
    };
}

bool versions::adamw_update(InstructionSet set, float* master, float* m, float* v, std::uint16_t* low,
                            const Gradients& gradients, std::size_t elements, const AdamWStep& step) {
    const Coefficients by = make_coefficients(step, gradients.scale);
    const auto run = [&]<bool writes_low, class Element>() {
        return run_on(set, Update<writes_low, Element>{master, m, v, low, gradients, elements, by});
    };
    if (gradients.dtype == Dtype::float32) {
        return low != nullptr ? run.operator()<true, float>() : run.operator()<false, float>();
    }
    return low != nullptr ? run.operator()<true, std::uint16_t>() : run.operator()<false, std::uint16_t>();
}

bool adamw_update(float* master, float* m, float* v, std::uint16_t* low, const Gradients& gradients,
                  std::size_t elements, const AdamWStep& step) {
    return versions::adamw_update(best_instruction_set(), master, m, v, low, gradients, elements, step);
}

}  // namespace luwu::kernels
