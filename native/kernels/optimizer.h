// Optimizer of a server: its name, its states of every element, and the update of a step. docs/optimizers.md tells how
// to add one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/gradients.h"
#include "kernels/instruction_set.h"
#include "kernels/state_code.h"

namespace luwu::kernels {

/// The settings of one parameter group for one step, in the optimizer's own order; what it does not use is 0.
inline constexpr std::size_t kHyperParameters = 6;
using HyperParameters = std::array<double, kHyperParameters>;

/// An optimizer keeps at most this many numbers of an element beside the master: a chunk's header has their checksums.
inline constexpr std::size_t kMaximumStates = 2;

/// The constants of one step of one parameter group, as the optimizer's loop wants them; only that looks inside.
struct Step {
    alignas(double) std::array<std::byte, 64> constants{};
};

/// A run of elements in memory. `low`, where it is not null, gets master's copy in `low_dtype`, bfloat16 or float16.
/// Where `remainder` is not null, a master is nowhere else than in `low`, of bfloat16, and there: `master` is not used.
/// Pointers need their element's alignment only; buffers must not overlap.
struct Elements {
    float* master = nullptr;
    std::array<float*, kMaximumStates> states{};
    std::uint16_t* low = nullptr;
    Dtype low_dtype = Dtype::bfloat16;
    std::uint16_t* remainder = nullptr;

    /// The same from element `first` on.
    [[nodiscard]] Elements from(std::size_t first) const {
        Elements later = *this;
        if (master != nullptr) later.master += first;
        for (float*& state : later.states) state = state == nullptr ? nullptr : state + first;
        if (low != nullptr) later.low += first;
        if (remainder != nullptr) later.remainder += first;
        return later;
    }
};

struct Optimizer {
    const char* name;                  // as manifests have it
    std::uint32_t number;              // as the store's files have it
    std::size_t hyper_parameters;      // how many it uses
    std::span<const StateCode> codes;  // one for each state; all are 0 before the first step
    /// `t` counts steps from one.
    Step (*prepare)(const HyperParameters& settings, std::uint64_t t);
    /// Updates `elements` master values and states in place, with the same bits on every instruction set. False when a
    /// scaled, summed gradient is not finite: all contents are then unspecified.
    bool (*update)(InstructionSet set, const Elements& at, const Gradients& gradients, std::size_t elements,
                   const Step& step);
};

/// All optimizers, each defined in a file of its own. A new one is added to both lines.
extern const Optimizer adamw, adam, sgd, lion, adagrad, adamw_8bit;
inline constexpr std::array kOptimizers{&adamw, &adam, &sgd, &lion, &adagrad, &adamw_8bit};

/// The one of this name, or null.
[[nodiscard]] const Optimizer* find_optimizer(std::string_view name);

}  // namespace luwu::kernels
