#include "schedule/record_queue.h"

#include <algorithm>
#include <utility>

namespace luwu::schedule {

namespace {

std::uint32_t take_first(std::deque<std::uint32_t>& queue) {
    const std::uint32_t chunk = queue.front();
    queue.pop_front();
    return chunk;
}

}  // namespace

RecordQueue::RecordQueue(std::size_t chunks, std::uint32_t at_once, std::uint32_t buffers)
    : entries_(chunks), at_once_(at_once) {
    for (std::uint32_t buffer = buffers; buffer-- > 0;) free_buffers_.push_back(buffer);
}

void RecordQueue::add(std::uint32_t chunk) {
    entries_[chunk].stage = Stage::waiting;
    waiting_.push_back(chunk);
    ++records_;
}

RecordQueue::Answer RecordQueue::want(std::uint32_t chunk) {
    Entry& entry = entries_[chunk];
    if (entry.stage == Stage::none || entry.buffer) return Answer::change;
    if (entry.stage == Stage::waiting) {
        std::erase(waiting_, chunk);
        if (take_buffer(chunk)) return Answer::copy;
        wanted_.push_back(chunk);
    }
    entry.wanted = true;
    return Answer::wait;
}

bool RecordQueue::take_buffer(std::uint32_t chunk) {
    if (free_buffers_.empty()) return false;
    entries_[chunk].stage = Stage::copying;
    entries_[chunk].buffer = free_buffers_.back();
    free_buffers_.pop_back();
    return true;
}

void RecordQueue::copied(std::uint32_t chunk) {
    entries_[chunk].stage = Stage::copied;
    copies_.push_back(chunk);
}

std::optional<std::uint32_t> RecordQueue::next_write() {
    if (under_way_ == at_once_) return std::nullopt;
    for (std::deque<std::uint32_t>* queue : {&wanted_, &waiting_, &copies_}) {
        if (queue->empty()) continue;
        ++under_way_;
        const std::uint32_t chunk = take_first(*queue);
        entries_[chunk].stage = Stage::writing;
        return chunk;
    }
    return std::nullopt;
}

bool RecordQueue::written(std::uint32_t chunk) {
    --under_way_;
    --records_;
    Entry& entry = entries_[chunk];
    if (entry.buffer) free_buffers_.push_back(*entry.buffer);
    return std::exchange(entry, {}).wanted;
}

std::optional<std::uint32_t> RecordQueue::next_copy() {
    if (wanted_.empty() || !take_buffer(wanted_.front())) return std::nullopt;
    const std::uint32_t chunk = take_first(wanted_);
    entries_[chunk].wanted = false;
    return chunk;
}

}  // namespace luwu::schedule
