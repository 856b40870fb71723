#include "pipeline/parameters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/crc32c.h"
#include "pipeline/executor.h"
#include "pipeline/owed_updates.h"
#include "pipeline/updates.h"
#include "schedule/read_ahead.h"

namespace luwu::pipeline {

using State = schedule::WindowCache::State;

Parameters::Parameters(Shared& shared)
    : shared_(shared),
      blocks_(shared.layout.block_count()),
      reader_(std::make_unique<IoStage>("luwu-1-read", shared.settings.make_engine(shared.settings.io_depth),
                                        shared.recorder, [this](IoTask& task) { read_done(task); })) {}

// New versions of a step that will be rolled back may never have been written, and must not be read; nor may old
// versions of a step that was answered.
bool Parameters::reading_allowed(std::uint32_t block) const {
    const step::State& step = shared_.step();
    return !(step.is_void() && shared_.parts.updates->changed(block)) && !step.blocks[block].stale();
}

void Parameters::hand_out(std::uint32_t block, Reply reply) {
    ++shared_.stats.pulls;
    const bool stale = shared_.step().blocks[block].stale();
    if (!stale && shared_.window.state(block) == State::resident) return deliver(block, reply);
    ++shared_.stats.pulls_waited;
    blocks_[block].waiting.push_back(std::move(reply));
    stale ? shared_.parts.owed->hurry(block) : want(block);
}

void Parameters::release(std::uint32_t block) {
    shared_.window.unhold(block);
    // A worker may be done with a block before its gradient is here, and the update needs the parameters, too.
    if (update_comes(block) && !shared_.pass.used_again_in_step(block)) shared_.window.set_awaits_update(block, true);
    retry_waiting();
    read_ahead();
    shared_.parts.executor->try_take_back();
}

// In this step, and it has not begun.
bool Parameters::update_comes(std::uint32_t block) const {
    const step::State& step = shared_.step();
    return step.working() && step.updates_at_once() && !step::is_updated_later(step.blocks[block].stage) &&
           step.rules.blocks[block].trainable && !shared_.parts.updates->started(block) &&
           !shared_.parts.updates->changed(block) && !step.is_void();
}

void Parameters::want(std::uint32_t block) {
    if (shared_.window.state(block) != State::absent) return;
    if (std::find(waiting_blocks_.begin(), waiting_blocks_.end(), block) != waiting_blocks_.end()) return;
    waiting_blocks_.push_back(block);
    retry_waiting();
}

void Parameters::retry_waiting() {
    while (!shared_.failed() && !waiting_blocks_.empty()) {
        const std::uint32_t block = waiting_blocks_.front();
        const bool stale = shared_.step().blocks[block].stale();
        if (shared_.window.state(block) == State::absent && !stale) {
            // A block that is needed at once keeps its place where an update under way is going to free another.
            const auto sooner_than =
                shared_.parts.updates->any_under_way() ? std::optional<std::uint64_t>(0) : std::nullopt;
            if (!reading_allowed(block) || !shared_.window.place(block, sooner_than)) break;
            read(block);
        } else if (shared_.window.state(block) == State::resident && !stale) {
            deliver_waiting(block);
        }  // else whoever reads or updates it hands it out
        waiting_blocks_.pop_front();
    }
    shared_.parts.owed->start_due();
}

void Parameters::read_ahead(std::uint32_t stream) {
    const auto allowed = [this](std::uint32_t block) { return reading_allowed(block); };
    while (waiting_blocks_.empty() && !shared_.failed()) {
        const auto block = schedule::place_ahead(shared_.pass, shared_.window, stream, allowed);
        if (!block) return;
        read(*block);
    }
}

void Parameters::read_ahead() {
    for (std::uint32_t stream = 0; stream < shared_.settings.streams(); ++stream) read_ahead(stream);
}

void Parameters::read(std::uint32_t block) {
    const std::uint64_t count = shared_.step().progress.count(block);
    const std::uint64_t step = shared_.step_of_read(block);
    const auto places = shared_.layout.chunks_of(block);
    blocks_[block].chunks_reading = static_cast<std::uint32_t>(places.size());
    for (std::uint32_t i = 0; i < places.size(); ++i) {
        auto task = std::make_unique<IoTask>();
        task->chunk = shared_.layout.first_chunk(block) + i;
        task->count = count;
        task->bytes = places[i].parameter_bytes + store::kPage;
        task->step = step;
        task->page = store::AlignedBuffer(store::kPage);
        task->request = shared_.store.records().read_parameters(places[i], count, shared_.parameters_of(places[i]),
                                                                task->page.data());
        ++shared_.reads_in_flight;
        reader_->submit(std::move(task));
    }
}

void Parameters::read_done(IoTask& task) {
    shared_.note(trace::Kind::read, task);
    const store::ChunkPlace& place = shared_.place(task.chunk);
    std::optional<Error> error;
    try {
        if (task.request.error != 0) throw shared_.store.records().failed(task.request, place, task.count);
        const store::ChunkHeader header = store::load_chunk_header(task.page.data());
        shared_.store.records().check_header(header, place, task.count);
        const std::byte* data = shared_.parameters_of(place);  // fixed while the block is being read
        const std::uint32_t crc = kernels::crc32c(0, data, place.elements * shared_.layout.parameter_size(place.block));
        if (crc != header.parameter_crc) throw shared_.store.records().damaged(place, task.count, 0);
    } catch (const Error& caught) {
        error = caught;
    }
    const std::lock_guard lock(shared_.mutex);
    --shared_.reads_in_flight;
    shared_.stats.bytes_read += task.bytes;
    if (error) return shared_.parts.executor->break_down(*error);
    if (shared_.step().broken) return;
    if (--blocks_[place.block].chunks_reading == 0) resident(place.block);
    shared_.parts.executor->try_take_back();
}

void Parameters::resident(std::uint32_t block) {
    shared_.window.read_done(block);
    if (!shared_.step().blocks[block].stale()) deliver_waiting(block);
    shared_.parts.updates->parameters_there(block);
    retry_waiting();
}

void Parameters::deliver_waiting(std::uint32_t block) {
    for (const Reply& reply : std::exchange(blocks_[block].waiting, {})) deliver(block, reply);
}

void Parameters::deliver(std::uint32_t block, const Reply& reply) {
    shared_.window.hold(block);
    shared_.stats.bytes_pulled += shared_.layout.shape().blocks[block].bytes();
    reply({true, static_cast<std::int64_t>(shared_.window.offset(block))});
}

void Parameters::fail() {
    for (Block& block : blocks_) {
        for (const Reply& reply : std::exchange(block.waiting, {})) reply({false, 0});
    }
}

}  // namespace luwu::pipeline
