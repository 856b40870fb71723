#include "pipeline/updates.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "pipeline/executor.h"
#include "pipeline/gradients.h"
#include "pipeline/keeping.h"
#include "pipeline/optimizers.h"
#include "pipeline/owed_updates.h"
#include "pipeline/parameters.h"
#include "pipeline/point_writes.h"
#include "pipeline/states.h"
#include "pipeline/writing.h"

namespace luwu::pipeline {

using State = schedule::WindowCache::State;

Updates::Updates(Shared& shared)
    : shared_(shared),
      blocks_(shared.layout.block_count()),
      memory_alone_(shared.layout.chunks().size(), false),
      needs_(shared.layout.chunks().size(), 0) {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
        blocks_[block].segments = {{shared.layout.shape().blocks[block].elements, 0}};
    }
}

void Updates::set_segments(std::uint32_t block, std::vector<Segment> segments) {
    blocks_[block].segments = std::move(segments);
}

void Updates::begin(const step::Update& action) {
    const std::uint32_t block = action.block;
    if (action.keeps) shared_.parts.keeping->expect(block);
    if (shared_.step().given_up(block)) return;
    // The update writes a copy of 16 bits anew from the master: it needs the copy's place, not its contents.
    if (shared_.layout.states_have_master(block) && shared_.window.state(block) == State::absent &&
        shared_.window.place(block)) {
        shared_.window.read_done(block);
    }
    if (shared_.window.state(block) == State::resident) return start_chunks(block);
    await_parameters(block);
    shared_.parts.parameters->want(block);
}

void Updates::parameters_there(std::uint32_t block) {
    if (std::exchange(blocks_[block].needs_parameters, false) && !shared_.step().given_up(block)) start_chunks(block);
}

void Updates::start_chunks(std::uint32_t block) {
    shared_.window.set_awaits_update(block, false);
    blocks_[block].chunks_to_update = shared_.chunks_of(block);
    begin_chunks(block, shared_.chunks_of(block));
    for (std::uint32_t i = 0; i < shared_.chunks_of(block); ++i) want_chunk(shared_.layout.first_chunk(block) + i);
}

void Updates::begin_chunks(std::uint32_t block, std::uint32_t to_write) {
    shared_.window.hold(block);
    blocks_[block].started = true;
    blocks_[block].chunks_to_write = to_write;
    ++under_way_;
}

void Updates::flush(const std::vector<std::uint32_t>& blocks) {
    for (const std::uint32_t block : blocks) {
        std::vector<std::uint32_t> chunks;
        for (std::uint32_t i = 0; i < shared_.chunks_of(block); ++i) {
            const std::uint32_t chunk = shared_.layout.first_chunk(block) + i;
            if (memory_alone_[chunk]) chunks.push_back(chunk);
        }
        if (chunks.empty()) {
            shared_.parts.executor->tell(shared_.machine.written(block));
            continue;
        }
        begin_chunks(block, static_cast<std::uint32_t>(chunks.size()));
        for (const std::uint32_t chunk : chunks) {
            shared_.states.claim(chunk);
            memory_alone_[chunk] = false;
            shared_.parts.optimizers->add({chunk, Work::Kind::seal});
        }
    }
}

void Updates::want_chunk(std::uint32_t chunk) {
    ++shared_.stats.chunks_updated;
    const bool from_disk = shared_.parts.keeping->on_disk(chunk);
    const bool may_change = shared_.parts.points->may_change(chunk);
    needs_[chunk] = static_cast<std::uint8_t>(1 + (from_disk ? 1 : 0) + (may_change ? 0 : 1));
    from_disk ? shared_.parts.keeping->want_memory(chunk) : shared_.parts.states->want(chunk);
}

void Updates::chunk_has(std::uint32_t chunk) {
    if (--needs_[chunk] == 0) shared_.parts.optimizers->add({chunk, Work::Kind::update});
}

ChunkUpdate Updates::describe(std::uint32_t chunk, std::uint64_t count) const {
    const store::ChunkPlace& place = shared_.place(chunk);
    ChunkUpdate update;
    update.place = &place;
    update.dtype = shared_.layout.dtype(place.block);
    update.optimizer = shared_.layout.shape().optimizer;
    update.codes = shared_.layout.plane_codes(place.block);
    update.count = count;
    update.parameters = shared_.parameters_of(place);
    update.states = shared_.states.memory(chunk);
    return update;
}

ChunkUpdate Updates::make_update(std::uint32_t chunk) const {
    const store::ChunkPlace& place = shared_.place(chunk);
    ChunkUpdate update = describe(chunk, shared_.step().progress.count(place.block) + 1);
    update.seals = !memory_alone_[chunk];
    update.verify = shared_.states.unverified(chunk);
    update.segments = blocks_[place.block].segments;
    if (shared_.step().blocks[place.block].owes()) {
        update.gradients = {shared_.parts.keeping->memory(chunk)};
        update.gradient_dtype = shared_.parts.keeping->dtype(place.block);
        update.scale = shared_.parts.owed->scale();
    } else {
        update.gradients = shared_.parts.gradients->at(place);
        update.gradient_dtype = shared_.gradient_dtype(place.block);
        update.scale = shared_.step().average();
        update.trims = shared_.settings.trims;
    }
    return update;
}

void Updates::update_one(std::uint32_t chunk) {
    const auto begin = std::chrono::steady_clock::now();
    const store::ChunkPlace& place = shared_.place(chunk);
    trace::Record span{
        .begin_ns = shared_.recorder.begin(), .block = place.block, .chunk = chunk, .kind = trace::Kind::update};
    ChunkUpdate update;
    std::vector<kernels::Step> groups;
    bool keeps = false;
    {
        const std::lock_guard lock(shared_.mutex);
        const step::State& step = shared_.step();
        if (step.given_up(place.block)) return;
        shared_.parts.gradients->pick_up(place.block);
        span.step = static_cast<std::uint32_t>(shared_.step_of_update(place.block));
        const bool owes = step.blocks[place.block].owes();
        keeps = step.clipping.keeps_gradients() && !owes;
        memory_alone_[chunk] = owes && !step.owed->record && shared_.stays(chunk);
        update = make_update(chunk);
        for (const GroupSettings& group : owes ? shared_.parts.owed->groups() : step.settings.groups) {
            groups.push_back(update.optimizer->prepare(group, update.count));
        }
    }
    update.groups = groups;
    if (keeps) shared_.parts.keeping->keep(update, chunk);
    const ChunkUpdateResult result = update_chunk(update);
    if (result.finite && update.seals) seal_record(update, result);
    shared_.recorder.end(span);
    const auto spent = std::chrono::steady_clock::now() - begin;
    const std::lock_guard lock(shared_.mutex);
    shared_.stats.update_nanoseconds +=
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    shared_.stats.elements_updated += place.elements;
    shared_.parts.gradients->put_down(place.block);
    if (result.damaged_plane != 0) {
        const Error damaged = shared_.store.records().damaged(place, update.count - 1, result.damaged_plane);
        return shared_.parts.executor->break_down(damaged);
    }
    if (!result.finite) shared_.parts.executor->tell(shared_.machine.spoiled());
    if (keeps) shared_.parts.keeping->store(chunk);
    chunk_updated(chunk, !shared_.step().is_void(place.block));
}

void Updates::seal_one(std::uint32_t chunk) {
    const std::uint32_t block = shared_.place(chunk).block;
    trace::Record span{
        .begin_ns = shared_.recorder.begin(), .block = block, .chunk = chunk, .kind = trace::Kind::checksum};
    ChunkUpdate record;
    {
        const std::lock_guard lock(shared_.mutex);
        if (shared_.step().given_up(block)) return;
        span.step = static_cast<std::uint32_t>(shared_.step().progress.step());
        record = describe(chunk, shared_.step().progress.count(block));
    }
    seal_record(record, checksums_of(record));
    shared_.recorder.end(span);
    const std::lock_guard lock(shared_.mutex);
    if (!shared_.step().given_up(block)) shared_.parts.writing->write_record(chunk, record.count, span.step);
}

void Updates::seal_record(const ChunkUpdate& update, const ChunkUpdateResult& result) const {
    store::ChunkHeader header = shared_.store.records().make_header(*update.place, update.count);
    header.parameter_crc = result.parameter_crc;
    header.state_crc = result.state_crc;
    store::seal(header);
    std::memcpy(update.states, &header, sizeof header);
}

void Updates::chunk_updated(std::uint32_t chunk, bool valid) {
    const std::uint32_t block = shared_.place(chunk).block;
    if (shared_.step().given_up(block)) return;
    const bool owes = shared_.step().blocks[block].owes();
    const bool follows = owes && shared_.step().owed->follows;
    const std::uint64_t count = shared_.step().progress.count(block) + 1;
    Block& entry = blocks_[block];
    if (owes) {
        shared_.parts.keeping->release(chunk);
    } else {
        entry.changed = true;
    }
    // Before the executor hears of it: the step may end with it, and the next one may write.
    const bool stays = memory_alone_[chunk];
    if (follows) {
        shared_.parts.points->add(chunk);
    } else if (valid && !stays) {
        shared_.parts.writing->write_record(chunk, count, shared_.step_of_update(block));
    }
    if (--entry.chunks_to_update == 0) {
        if (!owes) shared_.parts.gradients->give_back(block);
        shared_.parts.executor->tell(shared_.machine.caught_up(block));
        if (owes) shared_.parts.parameters->deliver_waiting(block);
    }
    if (!valid || stays || follows) chunk_written(chunk);
}

void Updates::chunk_written(std::uint32_t chunk) {
    shared_.states.release(chunk);
    const std::uint32_t block = shared_.place(chunk).block;
    Block& entry = blocks_[block];
    if (--entry.chunks_to_write == 0) {
        entry.started = false;
        --under_way_;
        shared_.window.unhold(block);
        shared_.parts.executor->tell(shared_.machine.written(block));
        shared_.parts.parameters->retry_waiting();
    }
    shared_.parts.states->serve_demand();
    shared_.parts.states->read_ahead();
    shared_.parts.executor->try_take_back();
}

void Updates::end_step() {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
        blocks_[block].changed = false;
        shared_.window.set_awaits_update(block, false);
    }
}

}  // namespace luwu::pipeline
