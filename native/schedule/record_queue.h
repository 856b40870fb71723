// Order in which the records of a commit point are written while later steps are made. The next update of a chunk would
// change its record in memory, so it waits until the record is written, or copied where there is a buffer for that.
// Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace luwu::schedule {

class RecordQueue {
  public:
    // Writes up to `at_once` records at the same time. Copies have `buffers`.
    RecordQueue(std::size_t chunks, std::uint32_t at_once, std::uint32_t buffers);

    void add(std::uint32_t chunk);  // its record is complete

    enum class Answer : std::uint8_t {
        change,  // nothing needs the record in memory
        copy,    // copy it to buffer(chunk) first, and call copied()
        wait,    // until written() returns true, or next_copy() names the chunk
    };
    // The chunk's update is the next that its record in memory meets.
    [[nodiscard]] Answer want(std::uint32_t chunk);
    void copied(std::uint32_t chunk);
    [[nodiscard]] std::optional<std::uint32_t> buffer(std::uint32_t chunk) const { return entries_[chunk].buffer; }

    // The chunk whose record is to be written now: from its copy, if it has a buffer. None: enough are under way, or
    // nothing waits.
    [[nodiscard]] std::optional<std::uint32_t> next_write();
    // Its record is on the disk. Returns true if its update waited for that.
    [[nodiscard]] bool written(std::uint32_t chunk);
    // A chunk whose update waits and whose record may now be copied, as with Answer::copy.
    [[nodiscard]] std::optional<std::uint32_t> next_copy();

    [[nodiscard]] bool empty() const { return records_ == 0; }  // all that was added is on the disk

  private:
    enum class Stage : std::uint8_t { none, waiting, copying, copied, writing };

    struct Entry {
        Stage stage = Stage::none;
        bool wanted = false;  // its update waits
        std::optional<std::uint32_t> buffer;
    };

    [[nodiscard]] bool take_buffer(std::uint32_t chunk);

    std::vector<Entry> entries_;
    std::uint32_t at_once_;
    std::uint32_t under_way_ = 0;
    std::uint64_t records_ = 0;
    std::vector<std::uint32_t> free_buffers_;
    std::deque<std::uint32_t> wanted_;   // chunks whose updates wait, in the order in which they came
    std::deque<std::uint32_t> waiting_;  // chunks that nobody waits for
    std::deque<std::uint32_t> copies_;   // last: nobody waits for them, and they cost no copy any more
};

}  // namespace luwu::schedule
