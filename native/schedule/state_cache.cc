#include "schedule/state_cache.h"

#include <algorithm>
#include <utility>

namespace luwu::schedule {

StateCache::StateCache(const store::Layout& layout, const ResidencyPlan& plan, NodePlan nodes)
    : nodes_(std::move(nodes)),
      entries_(layout.chunks().size()),
      memory_(plan.pinned_state_bytes + plan.state_buffers * plan.state_buffer_bytes + store::kPage),
      free_buffers_(nodes_.count()) {
    std::byte* next = memory_.data();
    for (std::uint32_t node = 0; node < nodes_.count(); ++node) {
        std::byte* const begin = next;
        for (std::size_t chunk = 0; chunk < entries_.size(); ++chunk) {
            if (!plan.state_pinned[chunk] || nodes_.of_chunk(chunk) != node) continue;
            entries_[chunk].pinned = true;
            entries_[chunk].memory = next;
            next += layout.chunks()[chunk].state_bytes();
        }
        for (std::uint32_t i = node; i < plan.state_buffers; i += nodes_.count(), next += plan.state_buffer_bytes) {
            free_buffers_[node].push_back(next);
        }
        nodes_.place({begin, next}, node);
    }
}

bool StateCache::take_buffer(std::uint32_t chunk) {
    const std::uint32_t own = nodes_.of_chunk(chunk);
    for (std::uint32_t turn = 0; turn < nodes_.count(); ++turn) {
        const std::uint32_t node = (own + turn) % nodes_.count();
        if (free_buffers_[node].empty()) continue;
        entries_[chunk].memory = free_buffers_[node].back();
        entries_[chunk].memory_node = node;
        free_buffers_[node].pop_back();
        return true;
    }
    return false;
}

void StateCache::give_buffer_back(Entry& entry) {
    free_buffers_[entry.memory_node].push_back(std::exchange(entry.memory, nullptr));
}

bool StateCache::place(std::uint32_t chunk, bool demand) {
    Entry& entry = entries_[chunk];
    if (!entry.pinned) {
        bool placed = take_buffer(chunk);
        if (!placed && demand) {
            // The chunk that was read ahead last is needed last.
            const auto surplus = std::find_if(read_ahead_.rbegin(), read_ahead_.rend(), [this](std::uint32_t other) {
                return entries_[other].state == State::ready;
            });
            if (surplus != read_ahead_.rend()) invalidate(*surplus);
            placed = take_buffer(chunk);
        }
        if (!placed) return false;
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
    give_buffer_back(entry);
    std::erase(read_ahead_, chunk);
}

}  // namespace luwu::schedule
