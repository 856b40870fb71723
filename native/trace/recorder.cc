#include "trace/recorder.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace luwu::trace {

std::uint64_t Recorder::now() noexcept {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

void Recorder::end(Record record) noexcept {
    if (record.begin_ns == 0 || !on()) return;
    record.end_ns = now();
    add(record);
}

// A thread that has said that it is adding, and then sees that recording is on, is waited for by stop(): one of the two
// comes first in the one order of these operations.
void Recorder::add(const Record& record) noexcept {
    if (record.begin_ns == 0 || !on()) return;
    adding_.fetch_add(1);
    if (on_.load()) {
        const std::uint64_t place = next_.fetch_add(1, std::memory_order_relaxed);
        if (place < capacity_) records_[place] = record;
    }
    adding_.fetch_sub(1);
}

void Recorder::start(std::uint64_t most_records) {
    stop();
    records_ = std::make_unique_for_overwrite<Record[]>(most_records);
    capacity_ = most_records;
    next_ = 0;
    on_ = true;
}

Recorded Recorder::stop() {
    on_ = false;
    while (adding_.load() != 0) std::this_thread::yield();
    const std::uint64_t asked = next_.exchange(0);
    const std::uint64_t count = std::min(asked, capacity_);
    capacity_ = 0;
    return {std::move(records_), count, asked - count};
}

}  // namespace luwu::trace
