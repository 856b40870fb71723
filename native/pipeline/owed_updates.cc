#include "pipeline/owed_updates.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "pipeline/parameters.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

void OwedUpdates::settle(const step::Settle& action) {
    order_ = order_of_next_pass(action.blocks);
    due_.assign(order_.begin(), order_.end());
    groups_ = shared_.step().settings.groups;
    scale_ = action.scale;
    reads_on_ = false;
}

// Blocks that were updated as their gradients came will probably be so again.
void OwedUpdates::end_step(const std::vector<std::uint32_t>& arrivals) {
    const step::State& step = shared_.step();
    order_after_ = order_;
    if (!step.next_updates_at_once()) return;
    order_after_.clear();
    std::copy_if(arrivals.begin(), arrivals.end(), std::back_inserter(order_after_),
                 [&step](std::uint32_t block) { return !step.blocks[block].stale(); });
    if (order_after_.empty()) order_after_ = arrivals;
}

// Pulled blocks come first, in the order of their pulls; the others follow in the reverse order of their pushes.
std::vector<std::uint32_t> OwedUpdates::order_of_next_pass(const std::vector<std::uint32_t>& arrivals) {
    shared_.pass.end_step();
    std::vector<std::uint32_t> blocks(arrivals.rbegin(), arrivals.rend());
    const auto place = [this](std::uint32_t block) {
        return shared_.pass.first_use(block).value_or(std::numeric_limits<std::uint64_t>::max());
    };
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](std::uint32_t left, std::uint32_t right) { return place(left) < place(right); });
    return blocks;
}

std::optional<std::vector<std::uint32_t>> OwedUpdates::order_after() {
    if (!shared_.step().owed || !due_.empty() || std::exchange(reads_on_, true)) return std::nullopt;
    return order_after_;
}

void OwedUpdates::hurry(std::uint32_t block) {
    if (!shared_.step().owed) return;
    const auto found = std::find(due_.begin(), due_.end(), block);
    if (found != due_.end()) {
        due_.erase(found);
        due_.push_front(block);
    }
    start_due();
}

void OwedUpdates::start_due() {
    const step::State& step = shared_.step();
    if (!step.owed || step.broken) return;
    const bool record_wanted = !due_.empty() && (step.flush_is_due || step.any_waits_to_update());
    while (!due_.empty()) {
        const std::uint32_t block = due_.front();
        const bool wanted = record_wanted || shared_.parts.parameters->awaited(block) ||
                            step.blocks[block].stage == step::BlockStage::waiting_to_keep;
        if (!start(block, step.nobody_pulls() || wanted)) return;
        due_.pop_front();
    }
}

// False: no place now.
bool OwedUpdates::start(std::uint32_t block, bool at_any_price) {
    using State = schedule::WindowCache::State;
    if (shared_.window.state(block) == State::absent) {
        if (!shared_.window.place(block, at_any_price ? std::nullopt : shared_.pass.next_use(block))) return false;
        // The update writes a copy of 16 bits anew from the master: it needs the copy's place, not its contents.
        if (shared_.layout.states_have_master(block)) {
            shared_.window.read_done(block);
        } else {
            shared_.parts.parameters->read(block);
        }
    }
    if (shared_.window.state(block) == State::resident) {
        shared_.parts.updates->start_chunks(block);
    } else {
        shared_.parts.updates->await_parameters(block);
    }
    return true;
}

}  // namespace luwu::pipeline
