#include "schedule/residency.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/keep.h"
#include "store/error.h"
#include "store/size_text.h"

namespace luwu::schedule {

namespace {

constexpr const char* kMoreMemory = "; give the server more (--memory, or memory= of luwu.open)";

constexpr std::uint32_t kKeptBuffers = 4;  // of gradients on their way to the disk or back
// More in flight than this did not move the disk any faster. Small states, such as those of 8 bits, need more buffers
// for as many bytes, up to a few more than an I/O engine takes at once.
constexpr std::uint64_t kStateBytesUseful = 36U << 20;
constexpr std::uint64_t kStateBuffersUseful = 12;
constexpr std::uint64_t kStateBuffersMost = 24;

std::uint64_t useful_buffers(std::uint64_t room_bytes, std::uint64_t buffer_bytes) {
    const std::uint64_t most = std::clamp(kStateBytesUseful / buffer_bytes, kStateBuffersUseful, kStateBuffersMost);
    return std::min(most, room_bytes / buffer_bytes);
}

// Chooses from `costs` (0: not a candidate) as many as fit into `bytes`, evenly spread; returns what they take.
std::uint64_t choose_evenly(const std::vector<std::uint64_t>& costs, std::uint64_t bytes, std::vector<bool>& chosen) {
    std::uint64_t total = 0;
    for (const std::uint64_t cost : costs) total += cost;
    if (total == 0) return 0;
    const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
    std::uint64_t used = 0;
    double due = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) {
        due += share * static_cast<double>(costs[i]);
        const bool take = costs[i] > 0 && used + costs[i] <= bytes &&
                          (total <= bytes || static_cast<double>(used + costs[i]) <= due + 1.0);
        if (!take) continue;
        chosen[i] = true;
        used += costs[i];
    }
    return used;
}

class Planner {
  public:
    Planner(const store::Layout& layout, std::uint64_t memory_bytes, std::uint32_t workers,
            const std::vector<bool>& held, std::optional<kernels::Dtype> gradients)
        : layout_(layout), memory_bytes_(memory_bytes), workers_(workers), held_(held), gradients_(gradients) {}

    ResidencyPlan plan_minimum() {
        measure();
        memory_bytes_ = plan_.minimum_bytes;
        return divide();
    }

    ResidencyPlan plan() {
        measure();
        if (memory_bytes_ < plan_.minimum_bytes) {
            throw Error(ErrorKind::memory_budget, "the memory budget is " + store::size_text(memory_bytes_) +
                                                      " but this model with " + std::to_string(workers_) +
                                                      " worker(s) needs at least " +
                                                      store::size_text(plan_.minimum_bytes) + kMoreMemory);
        }
        return divide();
    }

  private:
    ResidencyPlan divide() {
        plan_.budget_bytes = memory_bytes_;
        pin_parameters();
        pin_states();
        place_blocks();
        return plan_;
    }

    void measure() {
        plan_.pinned_offset.assign(layout_.block_count(), -1);
        plan_.state_pinned.assign(layout_.chunks().size(), false);
        pinned_.assign(layout_.block_count(), false);
        std::uint64_t held_gradients = 0;
        std::uint64_t largest_gradient = 0;
        std::uint64_t held_bytes = 0;
        bool rotates_trainable = false;
        bool rotates_frozen = false;
        for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
            const std::uint64_t bytes = layout_.window_bytes(block);
            if (layout_.shape().blocks[block].trainable) {
                const kernels::Dtype dtype = gradients_.value_or(layout_.dtype(block));
                const std::uint64_t gradient =
                    store::round_up(layout_.shape().blocks[block].elements * kernels::size_of(dtype), store::kPage);
                if (held_[block])
                    held_gradients += gradient;
                else
                    largest_gradient = std::max(largest_gradient, gradient);
            }
            pinned_[block] = held_[block];
            (held_[block] ? held_bytes : rotating_bytes_) += bytes;
            if (held_[block]) continue;
            (layout_.shape().blocks[block].trainable ? rotates_trainable : rotates_frozen) = true;
        }
        for (const store::ChunkPlace& place : layout_.chunks()) {
            if (!place.trainable) continue;
            state_bytes_ += place.state_bytes();
            plan_.state_buffer_bytes = std::max(plan_.state_buffer_bytes, place.state_bytes());
        }
        plan_.arena_bytes = held_gradients + 2 * largest_gradient;
        // A unit in use and the next one for each worker, one block being updated and one being read. A unit with
        // trainable and frozen parameters has two blocks.
        const std::uint32_t blocks_of_unit = rotates_trainable && rotates_frozen ? 2 : 1;
        plan_.slots = rotating_bytes_ > 0 ? 2 * workers_ * blocks_of_unit + 2 : 0;
        held_bytes += pin_outsized();
        fixed_bytes_ = held_bytes + workers_ * plan_.arena_bytes;
        const std::uint64_t rotating_window = std::min(rotating_bytes_, plan_.slots * plan_.slot_bytes);
        const std::uint64_t rotating_states = std::min(state_bytes_, kStateBuffersMinimum * plan_.state_buffer_bytes);
        plan_.minimum_bytes = fixed_bytes_ + rotating_window + rotating_states;
    }

    // Slots are as large as the largest block that takes turns in them. A few blocks that are much larger than the
    // rest, such as tables of embeddings, take less memory in places of their own. Returns what these take.
    std::uint64_t pin_outsized() {
        std::vector<std::uint32_t> rotating;
        for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
            if (!pinned_[block]) rotating.push_back(block);
        }
        std::stable_sort(rotating.begin(), rotating.end(), [this](std::uint32_t a, std::uint32_t b) {
            return layout_.window_bytes(a) > layout_.window_bytes(b);
        });
        std::uint64_t least = rotating_bytes_;  // nothing takes turns
        std::size_t best = 0;
        std::uint64_t own = 0;  // bytes of blocks before this one
        for (std::size_t i = 0; i < rotating.size(); ++i) {
            const std::uint64_t window = own + plan_.slots * layout_.window_bytes(rotating[i]);
            if (window < least) {
                least = window;
                best = i;
            }
            own += layout_.window_bytes(rotating[i]);
        }
        own = 0;
        for (std::size_t i = 0; i < best; ++i) {
            pinned_[rotating[i]] = true;
            own += layout_.window_bytes(rotating[i]);
        }
        rotating_bytes_ -= own;
        plan_.slot_bytes = rotating.empty() ? 0 : layout_.window_bytes(rotating[best]);
        return own;
    }

    void pin_parameters() {
        const std::uint64_t room = memory_bytes_ - fixed_bytes_ - ring_before_parameters();
        if (rotating_bytes_ <= room) {
            plan_.slots = 0;
            std::fill(pinned_.begin(), pinned_.end(), true);
            window_used_ = rotating_bytes_;
            return;
        }
        std::vector<std::uint64_t> costs(layout_.block_count(), 0);
        for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
            if (!pinned_[block]) costs[block] = layout_.window_bytes(block);
        }
        const std::uint64_t slots_bytes = plan_.slots * plan_.slot_bytes;
        window_used_ = slots_bytes + choose_evenly(costs, room - slots_bytes, pinned_);
    }

    // Without enough in flight the disk idles, which costs more than reading some parameters; but at most half of what
    // both could have, so that a small budget still keeps some.
    [[nodiscard]] std::uint64_t ring_before_parameters() const {
        if (state_bytes_ == 0) return 0;
        const std::uint64_t both =
            memory_bytes_ - fixed_bytes_ - std::min(rotating_bytes_, plan_.slots * plan_.slot_bytes);
        const std::uint64_t buffers = useful_buffers(both / 2, plan_.state_buffer_bytes);
        const std::uint64_t ring = std::max<std::uint64_t>(buffers, kStateBuffersMinimum) * plan_.state_buffer_bytes;
        return std::min(state_bytes_, ring);
    }

    void pin_states() {
        const std::uint64_t room = memory_bytes_ - fixed_bytes_ - window_used_;
        if (state_bytes_ <= room) {
            for (std::size_t i = 0; i < plan_.state_pinned.size(); ++i) {
                plan_.state_pinned[i] = layout_.chunks()[i].trainable;
            }
            plan_.pinned_state_bytes = state_bytes_;
            plan_.total_bytes = fixed_bytes_ + window_used_ + state_bytes_;
            return;
        }
        plan_.state_buffers = static_cast<std::uint32_t>(useful_buffers(room, plan_.state_buffer_bytes));
        const std::uint64_t ring = plan_.state_buffers * plan_.state_buffer_bytes;
        std::vector<std::uint64_t> costs;
        for (const store::ChunkPlace& place : layout_.chunks())
            costs.push_back(place.trainable ? place.state_bytes() : 0);
        plan_.pinned_state_bytes = choose_evenly(costs, room - ring, plan_.state_pinned);
        plan_.total_bytes = fixed_bytes_ + window_used_ + ring + plan_.pinned_state_bytes;
    }

    void place_blocks() {
        std::uint64_t offset = 0;
        for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
            if (!pinned_[block]) continue;
            plan_.pinned_offset[block] = static_cast<std::int64_t>(offset);
            offset += layout_.window_bytes(block);
        }
        plan_.slots_offset = offset;
        plan_.window_bytes = offset + plan_.slots * plan_.slot_bytes;
    }

    const store::Layout& layout_;
    std::uint64_t memory_bytes_;
    std::uint32_t workers_;
    const std::vector<bool>& held_;
    std::optional<kernels::Dtype> gradients_;
    ResidencyPlan plan_;
    std::vector<bool> pinned_;
    std::uint64_t fixed_bytes_ = 0;
    std::uint64_t rotating_bytes_ = 0;
    std::uint64_t state_bytes_ = 0;
    std::uint64_t window_used_ = 0;
};

// Shares the memory of states out between them and kept gradients.
class ClippingPlanner {
  public:
    ClippingPlanner(const store::Layout& layout, ResidencyPlan plan, std::span<const kernels::Dtype> kept) {
        result_.plan = std::move(plan);
        result_.kept.pinned.assign(layout.chunks().size(), false);
        for (const store::ChunkPlace& place : layout.chunks()) {
            kept_.push_back(place.trainable ? kept_bytes(place, kept[place.block]) : 0);
            states_.push_back(place.trainable ? place.state_bytes() : 0);
        }
        kept_total_ = std::accumulate(kept_.begin(), kept_.end(), std::uint64_t{0});
        state_total_ = std::accumulate(states_.begin(), states_.end(), std::uint64_t{0});
        buffer_bytes_ = *std::max_element(kept_.begin(), kept_.end());
        state_buffer_bytes_ = *std::max_element(states_.begin(), states_.end());
        const ResidencyPlan& before = result_.plan;
        other_bytes_ = before.total_bytes - before.pinned_state_bytes - before.state_buffers * state_buffer_bytes_;
        room_ = before.budget_bytes - other_bytes_;
    }

    ClippingPlan divide() {
        if (state_total_ + kept_total_ <= room_) {
            pin(states_, state_total_, result_.plan.state_pinned, result_.plan.pinned_state_bytes);
            pin(kept_, kept_total_, result_.kept.pinned, result_.kept.pinned_bytes);
            return finish(0, 0);
        }
        const std::uint64_t least = state_buffer_bytes_ + buffer_bytes_;
        if (room_ < least) {
            throw Error(ErrorKind::memory_budget, "the memory budget is " +
                                                      store::size_text(result_.plan.budget_bytes) +
                                                      " but clipping this model's gradients needs at least " +
                                                      store::size_text(other_bytes_ + least) + kMoreMemory);
        }
        const std::uint64_t useful = useful_buffers(room_, state_buffer_bytes_);
        std::uint64_t ring = std::max(useful * state_buffer_bytes_, state_buffer_bytes_);
        if (ring + kept_total_ <= room_) {
            pin(kept_, kept_total_, result_.kept.pinned, result_.kept.pinned_bytes);
            pin(states_, room_ - ring - kept_total_, result_.plan.state_pinned, result_.plan.pinned_state_bytes);
            return finish(ring, 0);
        }
        const std::uint64_t wanted = kKeptBuffers * buffer_bytes_;
        while (ring > state_buffer_bytes_ && ring + wanted > room_) ring -= state_buffer_bytes_;
        const std::uint64_t buffers = std::min(std::uint64_t{kKeptBuffers}, (room_ - ring) / buffer_bytes_);
        pin(kept_, room_ - ring - buffers * buffer_bytes_, result_.kept.pinned, result_.kept.pinned_bytes);
        pin(states_, 0, result_.plan.state_pinned, result_.plan.pinned_state_bytes);
        return finish(ring, buffers);
    }

  private:
    static void pin(const std::vector<std::uint64_t>& costs, std::uint64_t bytes, std::vector<bool>& pinned,
                    std::uint64_t& used) {
        pinned.assign(costs.size(), false);
        used = choose_evenly(costs, bytes, pinned);
    }

    ClippingPlan finish(std::uint64_t ring, std::uint64_t buffers) {
        result_.plan.state_buffers = static_cast<std::uint32_t>(ring / state_buffer_bytes_);
        result_.kept.buffer_bytes = buffer_bytes_;
        result_.kept.buffers = static_cast<std::uint32_t>(buffers);
        result_.plan.total_bytes =
            other_bytes_ + result_.plan.pinned_state_bytes + ring + result_.kept.pinned_bytes + buffers * buffer_bytes_;
        return result_;
    }

    ClippingPlan result_;
    std::vector<std::uint64_t> kept_;  // bytes, per chunk
    std::vector<std::uint64_t> states_;
    std::uint64_t kept_total_ = 0;
    std::uint64_t state_total_ = 0;
    std::uint64_t buffer_bytes_ = 0;
    std::uint64_t state_buffer_bytes_ = 0;
    std::uint64_t other_bytes_ = 0;  // of what the plan has for anything else
    std::uint64_t room_ = 0;
};

}  // namespace

std::uint64_t kept_bytes(const store::ChunkPlace& place, kernels::Dtype kept) {
    return store::round_up(place.elements * kernels::size_of(kept), store::kPage);
}

ResidencyPlan plan_residency(const store::Layout& layout, std::uint64_t memory_bytes, std::uint32_t workers,
                             const std::vector<bool>& held, std::optional<kernels::Dtype> gradients) {
    return Planner(layout, memory_bytes, workers, held, gradients).plan();
}

ClippingPlan plan_clipping(const store::Layout& layout, ResidencyPlan plan, std::span<const kernels::Dtype> kept) {
    return ClippingPlanner(layout, std::move(plan), kept).divide();
}

ResidencyPlan plan_with_tail(const store::Layout& layout, std::uint64_t memory_bytes, std::uint32_t workers,
                             const std::vector<bool>& held, std::optional<kernels::Dtype> gradients,
                             std::span<const kernels::Dtype> kept) {
    ResidencyPlan plan = plan_residency(layout, memory_bytes, workers, held, gradients);
    if (plan.everything_resident()) return plan;
    std::uint64_t all = 0;
    for (const store::ChunkPlace& place : layout.chunks()) {
        if (place.trainable) all += kept_bytes(place, kept[place.block]);
    }
    const std::uint64_t share = std::min(all, (memory_bytes - plan.minimum_bytes) / 4);
    plan = plan_residency(layout, memory_bytes - share, workers, held, gradients);
    plan.budget_bytes = memory_bytes;
    return plan;
}

KeptPlan plan_tail(const store::Layout& layout, const ResidencyPlan& plan, std::span<const kernels::Dtype> kept) {
    KeptPlan tail;
    tail.to_disk = false;
    tail.pinned.assign(layout.chunks().size(), false);
    std::uint64_t chunks = 0;
    for (const store::ChunkPlace& place : layout.chunks()) {
        if (!place.trainable) continue;
        ++chunks;
        tail.buffer_bytes = std::max(tail.buffer_bytes, kept_bytes(place, kept[place.block]));
    }
    if (chunks == 0) return tail;
    tail.buffers =
        static_cast<std::uint32_t>(std::min(chunks, (plan.budget_bytes - plan.total_bytes) / tail.buffer_bytes));
    return tail;
}

std::vector<kernels::Dtype> kept_dtypes(const store::Layout& layout, std::uint32_t streams,
                                        std::optional<kernels::Dtype> gradients) {
    std::vector<kernels::Dtype> dtypes;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        dtypes.push_back(kernels::kept_dtype(streams, gradients.value_or(layout.dtype(block))));
    }
    return dtypes;
}

ResidencyPlan plan_minimum(const store::Layout& layout, std::uint32_t workers, const std::vector<bool>& held) {
    return Planner(layout, 0, workers, held, std::nullopt).plan_minimum();
}

}  // namespace luwu::schedule
