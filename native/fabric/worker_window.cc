#include "fabric/worker_window.h"

#include <utility>

namespace luwu::fabric {

WorkerWindow::WorkerWindow(const pipeline::ResidencyPlan& plan, std::vector<std::uint64_t> parameter_bytes, Fetch fetch)
    : slots_offset_(plan.slots_offset),
      slot_bytes_(plan.slot_bytes),
      parameter_bytes_(std::move(parameter_bytes)),
      fetch_(std::move(fetch)),
      file_("luwu-window", plan.window_bytes),
      memory_(file_.descriptor(), MapMode::shared),
      blocks_(parameter_bytes_.size()) {
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
        if (plan.pinned_offset[block] < 0) continue;
        blocks_[block].pinned = true;
        blocks_[block].offset = static_cast<std::uint64_t>(plan.pinned_offset[block]);
    }
    for (std::uint32_t slot = plan.slots; slot-- > 0;) free_slots_.push_back(slot);
}

void WorkerWindow::pull(std::uint32_t block, bool alone, Reply reply) {
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

bool WorkerWindow::release(std::uint32_t block) {
    std::vector<std::uint32_t> placed;
    {
        const std::lock_guard lock(mutex_);
        Block& entry = blocks_[block];
        if (entry.holds == 0) return false;
        if (--entry.holds > 0 || entry.pinned) return true;
        free_slots_.push_back(entry.slot);
        entry.offset.reset();
        placed = place_waiting();
    }
    fetch(placed);
    return true;
}

std::vector<std::uint32_t> WorkerWindow::place_waiting() {
    std::vector<std::uint32_t> placed;
    while (!queue_.empty() && (blocks_[queue_.front()].pinned || !free_slots_.empty())) {
        const std::uint32_t block = queue_.front();
        queue_.pop_front();
        placed.push_back(block);
        if (blocks_[block].pinned) continue;
        blocks_[block].slot = free_slots_.back();
        blocks_[block].offset = slots_offset_ + free_slots_.back() * slot_bytes_;
        free_slots_.pop_back();
    }
    return placed;
}

void WorkerWindow::fetch(const std::vector<std::uint32_t>& blocks) {
    for (const std::uint32_t block : blocks) {
        fetch_(block, blocks_[block].alone, {memory_.data() + *blocks_[block].offset, parameter_bytes_[block]});
    }
}

void WorkerWindow::fetched(std::uint32_t block, bool ok) {
    const std::lock_guard lock(mutex_);
    Block& entry = blocks_[block];
    const auto waiting = std::exchange(entry.waiting, {});
    if (ok) entry.holds += static_cast<std::uint32_t>(waiting.size());
    for (const Reply& reply : waiting) reply(ok, ok ? static_cast<std::int64_t>(*entry.offset) : 0);
}

void WorkerWindow::fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    for (const std::uint32_t block : std::exchange(queue_, {})) {
        for (const Reply& reply : std::exchange(blocks_[block].waiting, {})) reply(false, 0);
    }
}

}  // namespace luwu::fabric
