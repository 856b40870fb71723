// Decides which of a device's few buffers a block goes to, and where in the arena a gradient does. Pure: no memory,
// lock or thread of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace luwu::device {

// Buffers of one direction, some for each size of block. A block goes back to the buffer that it had last where that is
// free, so that its address stays.
class Ring {
  public:
    // `depth`: buffers of each size before make_room() adds one, beside one for each of the `kept` blocks, which hold
    // theirs for long.
    Ring(std::vector<std::uint64_t> block_bytes, std::uint32_t depth, const std::vector<std::uint32_t>& kept = {});

    // The number of a buffer for this block, which has none; nothing while all of its size are in use.
    [[nodiscard]] std::optional<std::uint32_t> choose(std::uint32_t block);
    // Adds a buffer for this block's size: whoever waits for the block holds all others.
    void make_room(std::uint32_t block);
    void vacate(std::uint32_t block);  // its buffer may take another block; nothing where it has none
    [[nodiscard]] std::optional<std::uint32_t> buffer_of(std::uint32_t block) const;
    [[nodiscard]] std::uint32_t buffers() const { return static_cast<std::uint32_t>(user_.size()); }

  private:
    struct Size {
        std::vector<std::uint32_t> buffers;
        std::uint32_t most = 0;    // that there may be
        std::uint32_t blocks = 0;  // of this size: more buffers are never used
        std::uint32_t next = 0;    // the first to look at
    };
    void use(std::uint32_t block, std::uint32_t buffer);

    std::vector<std::uint64_t> block_bytes_;
    std::unordered_map<std::uint64_t, Size> sizes_;
    std::vector<std::optional<std::uint32_t>> user_;  // by buffer: the block that it is in use by
    std::vector<std::optional<std::uint32_t>> home_;  // by block: the buffer that it had last
};

// Ranges of whole pages in a piece of memory that are taken and given back in one order.
class PageRing {
  public:
    explicit PageRing(std::uint64_t bytes) : bytes_(bytes) {}
    // The offset of a place of this size, on a page; nothing while there is no room. When all places are free,
    // there is room for the whole size.
    [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes);
    void give_back_oldest();
    void clear() { taken_.clear(); }
    [[nodiscard]] std::size_t taken() const { return taken_.size(); }

  private:
    struct Place {
        std::uint64_t begin;
        std::uint64_t end;
    };
    std::uint64_t bytes_;
    std::deque<Place> taken_;
};

}  // namespace luwu::device
