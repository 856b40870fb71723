// Makes an optimizer of a rule for one element: one pass over memory, with the gradients summed on the way. Internal to
// the kernels.
//
// A rule is a struct of constants:
//   kStates                                      how many numbers it keeps of an element, 1 or 2
//   static Rule at(const HyperParameters&, t)    its constants for step t, counted from one
//   float apply(master, gradient, state...)      the new master; changes the states in place; LUWU_INLINE
#pragma once

#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/gather.h"
#include "kernels/halves.h"
#include "kernels/optimizer.h"

namespace luwu::kernels {

/// In the place of the type of a low-precision copy, where there is none.
struct NoLow {};

/// In that place where the master is kept in a bfloat16 copy and a remainder.
struct Halves {};

/// Collected not_finite() words, one for each place of a group: no reduction is wanted before the end of a run.
struct NotFinite {
    std::array<std::uint32_t, kGroupElements> words{};

    LUWU_INLINE bool any() const {
        std::uint32_t all = 0;
        for (const std::uint32_t word : words) all |= word;
        return (all >> 31) != 0;
    }
};

/// The update of at most a group. `second` is null for a rule with one state, `low` where Low is NoLow.
template <class Low, class Rule, class Element>
LUWU_INLINE void update_elements(const Rule rule, float scale, float* __restrict master, float* __restrict first,
                                 float* __restrict second, std::uint16_t* __restrict low,
                                 const Element* __restrict gradients, std::size_t elements,
                                 std::uint32_t* __restrict found) {
    for (std::size_t i = 0; i < elements; ++i) {
        const float gradient = widen(gradients[i]) * scale;
        found[i] |= not_finite(gradient);
        float updated = 0.0F;
        if constexpr (Rule::kStates == 2) {
            updated = rule.apply(master[i], gradient, first[i], second[i]);
        } else {
            updated = rule.apply(master[i], gradient, first[i]);
        }
        master[i] = updated;
        if constexpr (!std::is_same_v<Low, NoLow>) low[i] = static_cast<std::uint16_t>(narrow<Low>(updated));
    }
}

template <class Rule, class Low, class Element>
struct Elementwise {
    static constexpr bool kJoins = std::is_same_v<Low, Halves>;
    static constexpr bool kWritesLow = !std::is_same_v<Low, NoLow>;
    using Copy = std::conditional_t<kJoins, NoLow, Low>;  // that the update's loop writes
    // Widening a float16 takes many operations: they are done apart, and the update's loop has no form for it.
    static constexpr bool kAlwaysGathers = std::is_same_v<Element, Float16>;
    const Elements& at;
    const Gradients& gradients;
    std::size_t elements;
    Rule rule;

    LUWU_INLINE bool operator()() const {
        if constexpr (!kAlwaysGathers) {
            if (gradients.count == 1) return update_all<false>();
        }
        return update_all<true>();
    }

    template <bool gathers>
    LUWU_INLINE bool update_all() const {
        NotFinite found;
        const Rule by = rule;
        std::size_t start = 0;
        for (; start + kGroupElements <= elements; start += kGroupElements) {
            update_group<gathers>(start, kGroupElements, by, found);
        }
        update_group<gathers>(start, elements - start, by, found);
        return !found.any();
    }

    template <bool gathers>
    LUWU_INLINE void update_group(std::size_t start, std::size_t count, const Rule& by, NotFinite& found) const {
        alignas(64) float joined[kJoins ? kGroupElements : 1];
        float* const master = kJoins ? joined : at.master + start;
        float* const first = at.states[0] + start;
        float* const second = Rule::kStates == 2 ? at.states[1] + start : nullptr;
        std::uint16_t* const low = kWritesLow ? at.low + start : nullptr;
        if constexpr (kJoins) {
            prefetch_group<true>(at.remainder + start);
            join_values(low, at.remainder + start, joined, count);
        } else {
            prefetch_group<true>(master);
        }
        prefetch_group<true>(first);
        if constexpr (Rule::kStates == 2) prefetch_group<true>(second);
        // Not stored past the cache: that gained nothing here, and cost 10 % where a checksum is taken next.
        if constexpr (kWritesLow) prefetch_group<true>(low);
        if constexpr (gathers) {
            alignas(64) float sum[kGroupElements];
            gather<Element>(sum, gradients, start, count);
            update_elements<Copy>(by, gradients.scale, master, first, second, low, sum, count, found.words.data());
        } else {
            const Element* const gradient = gradient_at<Element>(gradients, 0, start);
            prefetch_group(gradient);
            update_elements<Copy>(by, gradients.scale, master, first, second, low, gradient, count, found.words.data());
        }
        if constexpr (kJoins) split_values(joined, low, at.remainder + start, count);
    }
};

template <class Rule>
Step prepare_rule(const HyperParameters& settings, std::uint64_t t) {
    const Rule rule = Rule::at(settings, t);
    Step step;
    std::memcpy(step.constants.data(), &rule, sizeof rule);
    return step;
}

template <class Rule>
bool update_by_rule(InstructionSet set, const Elements& at, const Gradients& gradients, std::size_t elements,
                    const Step& step) {
    Rule rule;
    std::memcpy(&rule, step.constants.data(), sizeof rule);
    return with_element(gradients.dtype, [&]<class Element>() {
        const auto run = [&]<class Low>() {
            return run_on(set, Elementwise<Rule, Low, Element>{at, gradients, elements, rule});
        };
        if (at.remainder != nullptr) return run.template operator()<Halves>();
        if (at.low == nullptr) return run.template operator()<NoLow>();
        return at.low_dtype == Dtype::bfloat16 ? run.template operator()<Bfloat16>()
                                               : run.template operator()<Float16>();
    });
}

/// The optimizer that a rule makes; `codes` outlive it.
template <class Rule>
constexpr Optimizer make_optimizer(const char* name, std::uint32_t number, std::size_t hyper_parameters,
                                   std::span<const StateCode> codes) {
    static_assert(std::is_trivially_copyable_v<Rule> && sizeof(Rule) <= sizeof(Step));
    static_assert(Rule::kStates >= 1 && Rule::kStates <= kMaximumStates);
    return {name, number, hyper_parameters, codes, prepare_rule<Rule>, update_by_rule<Rule>};
}

/// For rules whose states are plain floats.
inline constexpr std::array kOneFloat{StateCode::float32};
inline constexpr std::array kTwoFloats{StateCode::float32, StateCode::float32};

}  // namespace luwu::kernels
