#include "fabric/core/parameter_buffers.h"

#include <algorithm>
#include <utility>

#include "store/layout.h"

namespace luwu::fabric {

namespace {

// Blocks that take turns in one place: blocks that are much larger than the others, are not held and have a place of
// their own. None where a device copies from the window, whose memory cannot be given back.
std::vector<bool> find_large(const schedule::ResidencyPlan& plan, const std::vector<bool>& held,
                             const std::vector<std::uint64_t>& parameter_bytes, MapMode mode) {
    std::vector<bool> large(held.size(), false);
    if (mode == MapMode::shared) return large;
    std::vector<std::uint64_t> sizes;
    for (std::size_t block = 0; block < held.size(); ++block) {
        if (!held[block]) sizes.push_back(parameter_bytes[block]);
    }
    if (sizes.empty()) return large;
    const auto median = sizes.begin() + static_cast<std::ptrdiff_t>((sizes.size() - 1) / 2);
    std::nth_element(sizes.begin(), median, sizes.end());
    for (std::size_t block = 0; block < held.size(); ++block) {
        large[block] = !held[block] && plan.pinned_offset[block] >= 0 && parameter_bytes[block] >= 2 * *median;
    }
    return large;
}

// Bytes of the largest one, whole pages.
std::uint64_t largest_of(const std::vector<bool>& large, const std::vector<std::uint64_t>& parameter_bytes) {
    std::uint64_t largest = 0;
    for (std::size_t block = 0; block < large.size(); ++block) {
        if (large[block]) largest = std::max(largest, parameter_bytes[block]);
    }
    return store::round_up(largest, store::kPage);
}

}  // namespace

ParameterBuffers::ParameterBuffers(const schedule::ResidencyPlan& plan, const std::vector<bool>& held,
                                   std::vector<std::uint64_t> parameter_bytes, MapMode mode, Fetch fetch)
    : slots_offset_(plan.slots_offset),
      slot_bytes_(plan.slot_bytes),
      common_offset_(plan.window_bytes),
      parameter_bytes_(std::move(parameter_bytes)),
      large_(find_large(plan, held, parameter_bytes_, mode)),
      fetch_(std::move(fetch)),
      file_("luwu-window", plan.window_bytes + largest_of(large_, parameter_bytes_)),
      memory_(file_.descriptor(), MapMode::shared),
      blocks_(parameter_bytes_.size()) {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
        blocks_[block].turning = plan.pinned_offset[block] < 0;
        if (!blocks_[block].turning) blocks_[block].own_offset = static_cast<std::uint64_t>(plan.pinned_offset[block]);
    }
    for (std::uint32_t slot = plan.slots; slot-- > 0;) free_slots_.push_back(slot);
}

void ParameterBuffers::pull(std::uint32_t block, bool alone, Reply reply) {
    std::vector<std::uint32_t> placed;
    {
        std::unique_lock lock(mutex_);
        Block& entry = blocks_[block];
        if (failed_) {
            lock.unlock();
            return reply(false, 0);
        }
        if (entry.holds > 0) {
            ++entry.holds;
            return reply(true, static_cast<std::int64_t>(*entry.offset));
        }
        entry.waiting.push_back(std::move(reply));
        if (entry.waiting.size() > 1) return;  // on its way
        entry.alone = alone;
        queue_.push_back(block);
        placed = place_waiting();
    }
    fetch(placed);
}

bool ParameterBuffers::release(std::uint32_t block) {
    std::vector<std::uint32_t> placed;
    {
        const std::lock_guard lock(mutex_);
        Block& entry = blocks_[block];
        if (entry.holds == 0) return false;
        if (--entry.holds > 0) return true;
        give_back_place(block);
        placed = place_waiting();
    }
    fetch(placed);
    return true;
}

void ParameterBuffers::give_back_place(std::uint32_t block) {
    Block& entry = blocks_[block];
    if (entry.turning) {
        free_slots_.push_back(entry.slot);
    } else if (large_[block] && entry.offset == common_offset_) {
        common_free_ = true;
    } else if (large_[block]) {
        memory_.discard(entry.own_offset, store::round_up(parameter_bytes_[block], store::kPage));
    }
    entry.offset.reset();
}

std::vector<std::uint32_t> ParameterBuffers::place_waiting() {
    std::vector<std::uint32_t> placed;
    while (!queue_.empty() && (!blocks_[queue_.front()].turning || !free_slots_.empty())) {
        placed.push_back(queue_.front());
        queue_.pop_front();
        place(placed.back());
    }
    return placed;
}

void ParameterBuffers::place(std::uint32_t block) {
    Block& entry = blocks_[block];
    if (entry.turning) {
        entry.slot = free_slots_.back();
        entry.offset = slots_offset_ + entry.slot * slot_bytes_;
        free_slots_.pop_back();
    } else if (large_[block] && common_free_) {
        entry.offset = common_offset_;
        common_free_ = false;
    } else {
        entry.offset = entry.own_offset;
    }
}

void ParameterBuffers::fetch(const std::vector<std::uint32_t>& blocks) {
    for (const std::uint32_t block : blocks) {
        fetch_(block, blocks_[block].alone, {memory_.data() + *blocks_[block].offset, parameter_bytes_[block]});
    }
}

void ParameterBuffers::fetched(std::uint32_t block, bool ok) {
    const std::lock_guard lock(mutex_);
    Block& entry = blocks_[block];
    const auto waiting = std::exchange(entry.waiting, {});
    if (ok) entry.holds += static_cast<std::uint32_t>(waiting.size());
    for (const Reply& reply : waiting) reply(ok, ok ? static_cast<std::int64_t>(*entry.offset) : 0);
}

void ParameterBuffers::fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    for (const std::uint32_t block : std::exchange(queue_, {})) {
        for (const Reply& reply : std::exchange(blocks_[block].waiting, {})) reply(false, 0);
    }
}

}  // namespace luwu::fabric
