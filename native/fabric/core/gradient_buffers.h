// The places in one worker's arena that gradients arrive in: one for each held block, and two that the others take in
// turn, as schedule::ResidencyPlan counts them.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "fabric/core/shared_memory.h"
#include "store/layout.h"

namespace luwu::fabric {

class GradientBuffers {
  public:
    // `gradient_bytes` per block; frozen blocks have none.
    GradientBuffers(const store::StoreShape& shape, const std::vector<bool>& held,
                    const std::vector<std::uint64_t>& gradient_bytes, std::uint64_t file_bytes, std::uint32_t rank);

    // A place for this block's gradient, or nothing until one is free. Any thread.
    [[nodiscard]] std::optional<std::uint32_t> take(std::uint32_t block);
    void free(std::uint32_t place);
    [[nodiscard]] bool all_free() const;
    [[nodiscard]] std::byte* memory(std::uint32_t place) const { return data_ + places_[place].offset; }
    // All of the arena at once, for first values; only while all places are free.
    [[nodiscard]] std::byte* whole() const { return data_; }
    void discard() const { arena_.discard(); }  // its memory goes back to the system

  private:
    struct Buffer {
        std::uint64_t offset = 0;
        std::optional<std::uint32_t> block;  // the held block that it is for
        bool taken = false;
    };

    MemoryFile file_;
    Mapping arena_;
    std::byte* data_;
    std::vector<bool> held_;
    mutable std::mutex mutex_;
    std::vector<Buffer> places_;
};

}  // namespace luwu::fabric
