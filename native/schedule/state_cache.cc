#include "schedule/state_cache.h"

#include <algorithm>

namespace luwu::schedule {

StateCache::StateCache(const store::Layout& layout, const ResidencyPlan& plan)
    : entries_(layout.chunks().size()),
      memory_(plan.pinned_state_bytes + plan.state_buffers * plan.state_buffer_bytes + store::kPage) {
    std::byte* next = memory_.data();
    for (std::size_t chunk = 0; chunk < entries_.size(); ++chunk) {
        if (!plan.state_pinned[chunk]) continue;
        entries_[chunk].pinned = true;
        entries_[chunk].memory = next;
        next += layout.chunks()[chunk].state_bytes();
    }
    for (std::uint32_t i = 0; i < plan.state_buffers; ++i, next += plan.state_buffer_bytes) {
        free_buffers_.push_back(next);
    }
}

bool StateCache::place(std::uint32_t chunk, bool demand) {
    Entry& entry = entries_[chunk];
    if (!entry.pinned) {
        if (free_buffers_.empty() && demand) {
            // The chunk that was read ahead last is needed last.
            const auto surplus = std::find_if(read_ahead_.rbegin(), read_ahead_.rend(), [this](std::uint32_t other) {
                return entries_[other].state == State::ready;
            });
            if (surplus != read_ahead_.rend()) invalidate(*surplus);
        }
        if (free_buffers_.empty()) return false;
        entry.memory = free_buffers_.back();
        free_buffers_.pop_back();
        read_ahead_.push_back(chunk);
    }
    entry.state = State::reading;
    return true;
}

void StateCache::read_done(std::uint32_t chunk) {
    entries_[chunk].state = State::ready;
    entries_[chunk].unverified = true;
}

void StateCache::claim(std::uint32_t chunk) {
    entries_[chunk].state = State::in_use;
    std::erase(read_ahead_, chunk);
}

void StateCache::release(std::uint32_t chunk) {
    Entry& entry = entries_[chunk];
    if (!entry.pinned) {
        invalidate(chunk);
        return;
    }
    entry.state = State::ready;
    entry.unverified = false;
}

void StateCache::invalidate(std::uint32_t chunk) {
    Entry& entry = entries_[chunk];
    entry.state = State::absent;
    if (entry.pinned || entry.memory == nullptr) return;
    free_buffers_.push_back(entry.memory);
    entry.memory = nullptr;
    std::erase(read_ahead_, chunk);
}

}  // namespace luwu::schedule
