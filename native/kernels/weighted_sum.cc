#include "kernels/weighted_sum.h"

#include "kernels/unaligned.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

std::uint64_t split_mix(std::uint64_t& state) {
    state += 0x9E3779B97F4A7C15U;
    std::uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
    return mixed ^ (mixed >> 31);
}

// Both factors are cut to 32 signed bits first: the compiler then multiplies only those.
LUWU_INLINE std::uint64_t weigh(std::uint32_t weight, std::int32_t value) {
    return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(weight)} * value);
}

template <class Value>
struct WeightedSum {
    const std::uint32_t* weights;
    const std::byte* values;
    std::size_t bytes;

    LUWU_INLINE std::uint64_t operator()() const {
        const std::size_t whole = bytes / sizeof(Value);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < whole; ++i) sum += weigh(weights[i], load_at<Value>(values, i));
        const std::size_t rest = bytes % sizeof(Value);
        if (rest != 0) {
            Value last = 0;
            std::memcpy(&last, values + whole * sizeof last, rest);
            sum += weigh(weights[whole], last);
        }
        return sum;
    }
};

}  // namespace

Weights::Weights(std::uint64_t key, std::size_t count) : weights_(count) {
    for (std::uint32_t& weight : weights_) weight = static_cast<std::uint32_t>(split_mix(key) >> 33) | 1U;
}

std::uint64_t versions::weighted_sum(InstructionSet set, const std::uint32_t* weights, const void* values,
                                     std::size_t bytes, FixedForm form) {
    const auto* const from = static_cast<const std::byte*>(values);
    if (form == FixedForm::int16) return run_on(set, WeightedSum<std::int16_t>{weights, from, bytes});
    return run_on(set, WeightedSum<std::int32_t>{weights, from, bytes});
}

std::uint64_t weighted_sum(const std::uint32_t* weights, const void* values, std::size_t bytes, FixedForm form) {
    return versions::weighted_sum(best_instruction_set(), weights, values, bytes, form);
}

}  // namespace luwu::kernels
