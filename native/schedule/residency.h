// Divides the memory budget: what stays in memory permanently (pinned), and how much rotates. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/layout.h"

namespace luwu::schedule {

inline constexpr std::uint32_t kStateBuffersMinimum = 4;  // one being read, one updated, two written

// The window is the memory that workers read parameters from: pinned blocks first, then `slots` of equal size that the
// other blocks take turns in. States are pinned chunk by chunk; `state_buffers` of equal size serve the others.
struct ResidencyPlan {
    std::vector<std::int64_t> pinned_offset;  // per block: its place in the window, or -1 when it rotates
    std::uint64_t slots_offset = 0;
    std::uint64_t slot_bytes = 0;
    std::uint32_t slots = 0;
    std::uint64_t window_bytes = 0;
    std::vector<bool> state_pinned;  // per chunk of the layout
    std::uint64_t state_buffer_bytes = 0;
    std::uint32_t state_buffers = 0;
    std::uint64_t pinned_state_bytes = 0;
    std::uint64_t arena_bytes = 0;    // gradient buffers of one worker: held blocks', and two of the largest other's
    std::uint64_t minimum_bytes = 0;  // the smallest budget that can work
    std::uint64_t total_bytes = 0;    // what this plan uses
    std::uint64_t budget_bytes = 0;   // what it may use

    [[nodiscard]] bool everything_resident() const { return slots == 0 && state_buffers == 0; }
};

// Parameters are pinned before states, because a step reads them twice and states once. What is pinned is spread evenly
// over the model, so that the disk's work is even over the step; blocks that are much larger than the rest come first.
// `held` tells, per block, which are held through the whole step (the root's) and therefore always pinned; `gradients`
// is their dtype, without it each block's own.
// Throws Error(memory_budget) naming the minimum.
[[nodiscard]] ResidencyPlan plan_residency(const store::Layout& layout, std::uint64_t memory_bytes,
                                           std::uint32_t workers, const std::vector<bool>& held,
                                           std::optional<kernels::Dtype> gradients = std::nullopt);
// Places of gradients that are kept until their step is decided: those of pinned chunks permanently in memory, the
// others on disk, in `buffers` of equal size on their way there and back. Where only some are kept, none is pinned or
// on disk: each takes a buffer.
struct KeptPlan {
    std::vector<bool> pinned;  // per chunk of the layout
    std::uint64_t pinned_bytes = 0;
    std::uint64_t buffer_bytes = 0;
    std::uint32_t buffers = 0;
    bool to_disk = true;
};

// Bytes of a chunk's kept gradient, whole pages.
[[nodiscard]] std::uint64_t kept_bytes(const store::ChunkPlace& place, kernels::Dtype kept);

// Divides anew what `plan` has for states, and what it leaves, between states and kept gradients, which have these
// dtypes, per block.
// Gradients go before all states but the ring's: a byte of them is written and read, of states read. The window stays
// as it is. Throws Error(memory_budget) naming the minimum.
struct ClippingPlan {
    ResidencyPlan plan;
    KeptPlan kept;
};
[[nodiscard]] ClippingPlan plan_clipping(const store::Layout& layout, ResidencyPlan plan,
                                         std::span<const kernels::Dtype> kept);
// The residency where gradients are kept that updates are behind with. Where not everything fits, these get a quarter
// of what the budget has beyond the least: a byte of them lets five to thirteen bytes of the disk's work overlap with
// the next forward, and a byte of parameters or states that stays in memory saves two or one. Throws as plan_residency.
[[nodiscard]] ResidencyPlan plan_with_tail(const store::Layout& layout, std::uint64_t memory_bytes,
                                           std::uint32_t workers, const std::vector<bool>& held,
                                           std::optional<kernels::Dtype> gradients,
                                           std::span<const kernels::Dtype> kept);
// Their places, in what a plan leaves of its budget.
[[nodiscard]] KeptPlan plan_tail(const store::Layout& layout, const ResidencyPlan& plan,
                                 std::span<const kernels::Dtype> kept);
// Dtypes of kept gradients, per block. `streams`: those that the sum is of; `gradients`: the dtype of these, without it
// each block's own.
[[nodiscard]] std::vector<kernels::Dtype> kept_dtypes(const store::Layout& layout, std::uint32_t streams,
                                                      std::optional<kernels::Dtype> gradients);
// The plan of the smallest budget that can work.
[[nodiscard]] ResidencyPlan plan_minimum(const store::Layout& layout, std::uint32_t workers,
                                         const std::vector<bool>& held);

}  // namespace luwu::schedule
