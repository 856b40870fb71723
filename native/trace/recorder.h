// Spans of a run's work, recorded while somebody traces it, in memory of a bounded size. While nobody does, a span
// costs one relaxed load. docs/decisions/0032-traces.md
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

namespace luwu::trace {

// Kind of work. The numbers travel: luwu.core.trace has their names.
enum class Kind : std::uint16_t {
    // The server's steps.
    read = 1,          // a chunk's parameters
    hand_out = 2,      // a worker's pull, from its arrival until the block is handed out
    collect = 3,       // a worker's push, from its arrival until its gradient has been read
    read_states = 4,   // a chunk's
    update = 5,        // a chunk
    write = 6,         // a chunk's record
    commit = 7,        // a step's record, with all that must be on the disk before it
    roll_back = 8,     // an attempt's updates are taken back
    keep = 9,          // a chunk's gradient, until its step is decided
    write_kept = 10,   // of it to the disk
    read_kept = 11,    // and back
    checksum = 12,     // of a chunk that memory alone held, before it is written
    copy_record = 13,  // of a chunk that a commit point still writes, before its next update
    // A worker's.
    step = 32,
    forward = 33,   // of a block; of the whole model where there is no block
    backward = 34,  // as forward
    pull = 35,      // the worker waits for a block
    push = 36,      // the worker hands a gradient over
    end = 37,       // from the vote until the answer
    // A switch's.
    sum = 64,  // of a block's gradient, from its first packet until the last of its sums was sent
};

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;  // no block, no chunk
inline constexpr std::uint16_t kNobody = 0xFFFF;    // no worker

// Ranks above are not told apart from nobody.
[[nodiscard]] constexpr std::uint16_t worker_number(std::uint32_t rank) {
    return rank < kNobody ? static_cast<std::uint16_t>(rank) : kNobody;
}

// Times are of CLOCK_MONOTONIC, in nanoseconds.
struct Record {
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
    std::uint64_t bytes = 0;
    std::uint32_t step = 0;  // that the work is a part of: the committed steps before it, and one
    std::uint32_t block = kNone;
    std::uint32_t chunk = kNone;
    std::uint16_t worker = kNobody;
    Kind kind = Kind::read;
};
static_assert(sizeof(Record) == 40);  // as luwu.core.trace reads it

struct Recorded {
    std::unique_ptr<Record[]> memory;
    std::uint64_t count = 0;
    std::uint64_t dropped = 0;  // for which there was no room

    // In the order in which the spans ended.
    [[nodiscard]] std::span<const Record> records() const { return {memory.get(), count}; }
};

// add() may be called from any thread; start() and stop() from one at a time.
class Recorder {
  public:
    [[nodiscard]] bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
    // The time now, as a span's begin; 0 while nothing is recorded.
    [[nodiscard]] std::uint64_t begin() const noexcept { return on() ? now() : 0; }
    // Ends a span now, which add() does with one that has an end. Does nothing for a span that began while nothing was
    // recorded.
    void end(Record record) noexcept;
    void add(const Record& record) noexcept;

    // Records from now on, the first `most_records`. What was recorded before is forgotten.
    void start(std::uint64_t most_records);
    // Records no more, and returns what was recorded.
    Recorded stop();

    [[nodiscard]] static std::uint64_t now() noexcept;

  private:
    std::atomic<bool> on_{false};
    std::atomic<std::uint64_t> adding_{0};  // threads within add()
    std::atomic<std::uint64_t> next_{0};
    std::uint64_t capacity_ = 0;
    std::unique_ptr<Record[]> records_;
};

}  // namespace luwu::trace
