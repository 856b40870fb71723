#include "pipeline/point_writes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "pipeline/executor.h"

namespace luwu::pipeline {

namespace {

// A write that is under way cannot be copied from under it, so few are: enough to keep a disk busy.
constexpr std::uint32_t kWritesOfStripe = 4;

}  // namespace

void PointWrites::plan(std::uint64_t bytes) {
    std::uint64_t trainable = 0;
    for (const store::ChunkPlace& place : shared_.layout.chunks()) {
        if (!place.trainable) continue;
        ++trainable;
        buffer_bytes_ = std::max(buffer_bytes_, place.record_bytes());
    }
    const std::uint64_t buffers = buffer_bytes_ == 0 ? 0 : std::min(trainable, bytes / buffer_bytes_);
    if (buffers > 0) memory_ = store::AlignedBuffer(buffers * buffer_bytes_);
    const std::uint32_t at_once = std::min(shared_.settings.io_depth, kWritesOfStripe * shared_.layout.stripes());
    queue_.emplace(shared_.layout.chunks().size(), at_once, static_cast<std::uint32_t>(buffers));
}

void PointWrites::add(std::uint32_t chunk) {
    queue_->add(chunk);
    write_next();
}

void PointWrites::write_next() {
    const step::State& step = shared_.step();
    const store::CommitRecord& record = step.point ? step.point->record : *step.owed->record;
    while (const auto chunk = queue_->next_write()) {
        shared_.parts.writing->write_following(*chunk, record.counts[shared_.place(*chunk).block], copy_of(*chunk));
    }
}

void PointWrites::follow() {
    follow_ = true;
    end_if_written();
}

bool PointWrites::may_change(std::uint32_t chunk) {
    if (!queue_) return true;
    const auto answer = queue_->want(chunk);
    if (answer == schedule::RecordQueue::Answer::copy) shared_.parts.optimizers->add({chunk, Work::Kind::copy});
    return answer == schedule::RecordQueue::Answer::change;
}

std::byte* PointWrites::copy_of(std::uint32_t chunk) const {
    const auto buffer = queue_->buffer(chunk);
    return buffer ? memory_.data() + *buffer * buffer_bytes_ : nullptr;
}

void PointWrites::copy_one(std::uint32_t chunk) {
    const store::ChunkPlace& place = shared_.place(chunk);
    trace::Record span{
        .begin_ns = shared_.recorder.begin(), .block = place.block, .chunk = chunk, .kind = trace::Kind::copy_record};
    std::byte* copy = nullptr;
    {
        const std::lock_guard lock(shared_.mutex);
        if (shared_.step().broken) return;
        span.step = static_cast<std::uint32_t>(shared_.step().step_to_write());
        copy = copy_of(chunk);
    }
    std::memcpy(copy, shared_.parameters_of(place), place.parameter_bytes);
    std::memcpy(copy + place.parameter_bytes, shared_.states.memory(chunk), place.state_bytes());
    shared_.recorder.end(span);
    const std::lock_guard lock(shared_.mutex);
    if (shared_.step().broken) return;
    queue_->copied(chunk);
    write_next();
    shared_.parts.updates->chunk_has(chunk);
}

void PointWrites::done(const IoTask& task) {
    if (queue_->written(task.chunk)) shared_.parts.updates->chunk_has(task.chunk);
    while (const auto chunk = queue_->next_copy()) shared_.parts.optimizers->add({*chunk, Work::Kind::copy});
    write_next();
    end_if_written();
}

void PointWrites::end_if_written() {
    if (!follow_ || !queue_->empty()) return;
    follow_ = false;
    shared_.parts.executor->tell(shared_.machine.point_written());
}

}  // namespace luwu::pipeline
