#include "schedule/window_cache.h"

#include <limits>

namespace luwu::schedule {

WindowCache::WindowCache(const ResidencyPlan& plan, const Pass& pass)
    : pass_(pass),
      slots_offset_(plan.slots_offset),
      slot_bytes_(plan.slot_bytes),
      entries_(plan.pinned_offset.size()),
      slot_owner_(plan.slots, -1) {
    for (std::size_t block = 0; block < entries_.size(); ++block) {
        if (plan.pinned_offset[block] < 0) continue;
        entries_[block].pinned = true;
        entries_[block].offset = static_cast<std::uint64_t>(plan.pinned_offset[block]);
    }
}

bool WindowCache::place(std::uint32_t block, std::optional<std::uint64_t> sooner_than) {
    Entry& entry = entries_[block];
    if (!entry.pinned) {
        auto slot = free_slot();
        if (!slot) {
            const auto evicted = victim(sooner_than);
            if (!evicted) return false;
            slot = static_cast<std::uint32_t>(entries_[*evicted].slot);
            invalidate(*evicted);
        }
        slot_owner_[*slot] = block;
        entry.slot = static_cast<std::int32_t>(*slot);
        entry.offset = slots_offset_ + *slot * slot_bytes_;
    }
    entry.state = State::reading;
    return true;
}

void WindowCache::unhold(std::uint32_t block) {
    --entries_[block].holds;
    entries_[block].released_at = ++clock_;
}

void WindowCache::invalidate(std::uint32_t block) {
    Entry& entry = entries_[block];
    entry.state = State::absent;
    if (entry.slot >= 0) slot_owner_[static_cast<std::size_t>(entry.slot)] = -1;
    entry.slot = -1;
}

std::optional<std::uint32_t> WindowCache::free_slot() const {
    for (std::uint32_t slot = 0; slot < slot_owner_.size(); ++slot) {
        if (slot_owner_[slot] < 0) return slot;
    }
    return std::nullopt;
}

std::optional<std::uint32_t> WindowCache::victim(std::optional<std::uint64_t> sooner_than) const {
    constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
    std::optional<std::uint32_t> best;
    std::uint64_t best_use = 0;
    for (const std::int64_t owner : slot_owner_) {
        if (owner < 0) continue;
        const auto block = static_cast<std::uint32_t>(owner);
        const Entry& entry = entries_[block];
        if (entry.holds > 0 || entry.state != State::resident) continue;
        const std::uint64_t use = entry.awaits_update ? 0 : pass_.next_use(block).value_or(kNever);
        const bool farther =
            !best || use > best_use || (use == best_use && entry.released_at < entries_[*best].released_at);
        if (!farther) continue;
        best = block;
        best_use = use;
    }
    if (best && sooner_than && best_use <= *sooner_than) return std::nullopt;
    return best;
}

}  // namespace luwu::schedule
