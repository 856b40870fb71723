// Chunks' states (header page, master, m, v) in memory: pinned ones, and a ring of buffers for the others. Each is on
// its chunk's NUMA node; only where that has no buffer left is it on another. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/node_plan.h"
#include "schedule/residency.h"
#include "store/aligned_buffer.h"

namespace luwu::schedule {

class StateCache {
  public:
    enum class State : std::uint8_t { absent, reading, ready, in_use };

    StateCache(const store::Layout& layout, const ResidencyPlan& plan, NodePlan nodes);

    [[nodiscard]] State state(std::uint32_t chunk) const { return entries_[chunk].state; }
    [[nodiscard]] std::byte* memory(std::uint32_t chunk) const { return entries_[chunk].memory; }
    [[nodiscard]] bool pinned(std::uint32_t chunk) const { return entries_[chunk].pinned; }
    // Read from the store since it was last updated here: its checksums are still to be compared.
    [[nodiscard]] bool unverified(std::uint32_t chunk) const { return entries_[chunk].unverified; }

    // Gives an absent chunk a buffer and marks it as being read. A demand may take the buffer of a chunk that was read
    // ahead and is not in use. False: no buffer now, try again when one is released.
    [[nodiscard]] bool place(std::uint32_t chunk, bool demand);
    void read_done(std::uint32_t chunk);
    void claim(std::uint32_t chunk);
    // After its record was written: a pinned chunk stays, another's buffer goes back.
    void release(std::uint32_t chunk);
    void invalidate(std::uint32_t chunk);

  private:
    struct Entry {
        State state = State::absent;
        bool pinned = false;
        bool unverified = false;
        std::byte* memory = nullptr;
        std::uint32_t memory_node = 0;  // a buffer's
    };

    [[nodiscard]] bool take_buffer(std::uint32_t chunk);
    void give_buffer_back(Entry& entry);

    NodePlan nodes_;
    std::vector<Entry> entries_;
    store::AlignedBuffer memory_;
    std::vector<std::vector<std::byte*>> free_buffers_;  // per node
    std::vector<std::uint32_t> read_ahead_;  // rotating chunks reading or ready and not in use, oldest first
};

}  // namespace luwu::schedule
