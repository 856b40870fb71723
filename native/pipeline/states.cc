#include "pipeline/states.h"

#include <utility>

#include "pipeline/executor.h"
#include "pipeline/keeping.h"
#include "pipeline/owed_updates.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

using StateOfChunk = schedule::StateCache::State;

States::States(Shared& shared)
    : shared_(shared),
      wanted_(shared.layout.chunks().size(), false),
      reader_(std::make_unique<IoStage>("luwu-4-read", shared.settings.make_engine(shared.settings.io_depth),
                                        shared.recorder, [this](IoTask& task) { read_done(task); })) {}

void States::want(std::uint32_t chunk) {
    switch (shared_.states.state(chunk)) {
        case StateOfChunk::ready:
            return there(chunk);
        case StateOfChunk::reading:
            wanted_[chunk] = true;
            break;
        default:
            waiting_.push_back(chunk);
            serve_demand();
    }
    ++shared_.stats.states_waited;
}

void States::serve_demand() {
    while (!waiting_.empty()) {
        const std::uint32_t chunk = waiting_.front();
        const bool needed = !shared_.step().given_up(shared_.place(chunk).block);
        if (needed && !shared_.states.place(chunk, true)) return;
        waiting_.pop_front();
        if (!needed) continue;
        wanted_[chunk] = true;
        read(chunk);
    }
}

void States::follow(const std::vector<std::uint32_t>& order) {
    order_ = order;
    ahead_block_ = ahead_chunk_ = 0;  // what is there already is passed over
    ahead_of_next_step_ = false;
}

void States::read_ahead() {
    if (!waiting_.empty() || shared_.failed()) return;
    if (const auto next = shared_.parts.owed->order_after()) {
        order_ = *next;
        ahead_block_ = ahead_chunk_ = 0;
    }
    for (std::size_t seen = 0; seen <= order_.size() && !order_.empty(); ++seen) {
        const std::uint32_t block = order_[ahead_block_];
        // Its turn comes when it is written.
        if (shared_.parts.updates->started(block) && shared_.parts.owed->reads_on()) return;
        if (has_its_turn(block) && !read_block_ahead(block)) return;
        ahead_chunk_ = 0;
        ahead_block_ = (ahead_block_ + 1) % order_.size();
        if (ahead_block_ == 0) ahead_of_next_step_ = true;
    }
}

bool States::has_its_turn(std::uint32_t block) const {
    const Updates& updates = *shared_.parts.updates;
    const step::State& step = shared_.step();
    const bool had_it = updates.changed(block) && (step.is_void() || !ahead_of_next_step_);
    const bool others_first = step.owed && !shared_.parts.owed->reads_on() && !step.blocks[block].stale();
    return !updates.started(block) && !had_it && !others_first;
}

// False: no buffer is free.
bool States::read_block_ahead(std::uint32_t block) {
    for (; ahead_chunk_ < shared_.chunks_of(block); ++ahead_chunk_) {
        const auto chunk = shared_.layout.first_chunk(block) + static_cast<std::uint32_t>(ahead_chunk_);
        if (shared_.states.state(chunk) != StateOfChunk::absent) continue;
        if (!shared_.states.place(chunk, false)) return false;
        read(chunk);
    }
    return true;
}

void States::read(std::uint32_t chunk) {
    const store::ChunkPlace& place = shared_.place(chunk);
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->count = shared_.step().progress.count(place.block);
    task->bytes = place.state_bytes();
    task->step = shared_.step_of_read(place.block);
    task->request = shared_.store.records().read_states(place, task->count, shared_.states.memory(chunk));
    submit(std::move(task));
}

void States::submit(std::unique_ptr<IoTask> task) {
    ++shared_.reads_in_flight;
    reader_->submit(std::move(task));
}

void States::read_done(IoTask& task) {
    shared_.note(task.kept ? trace::Kind::read_kept : trace::Kind::read_states, task);
    if (task.kept) return shared_.parts.keeping->read_done(task);
    const store::ChunkPlace& place = shared_.place(task.chunk);
    const std::lock_guard lock(shared_.mutex);
    --shared_.reads_in_flight;
    shared_.stats.bytes_read += task.bytes;
    try {
        if (task.request.error != 0) throw shared_.store.records().failed(task.request, place, task.count);
        const std::byte* memory = shared_.states.memory(task.chunk);
        shared_.store.records().check_header(store::load_chunk_header(memory), place, task.count);
    } catch (const Error& error) {
        return shared_.parts.executor->break_down(error);
    }
    if (shared_.step().broken) return;
    shared_.states.read_done(task.chunk);
    const bool wanted = wanted_[task.chunk] && !shared_.step().given_up(place.block);
    wanted_[task.chunk] = false;
    if (wanted) there(task.chunk);
    serve_demand();
    shared_.parts.executor->try_take_back();
}

void States::there(std::uint32_t chunk) {
    shared_.states.claim(chunk);
    shared_.parts.updates->chunk_has(chunk);
}

}  // namespace luwu::pipeline
