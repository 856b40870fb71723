#include "pipeline/keeping.h"

#include <cmath>
#include <utility>

#include "pipeline/executor.h"
#include "pipeline/gradients.h"
#include "pipeline/optimizers.h"
#include "pipeline/point_writes.h"
#include "pipeline/states.h"
#include "pipeline/updates.h"
#include "pipeline/writing.h"

namespace luwu::pipeline {

void Keeping::plan() {
    auto dtypes = schedule::kept_dtypes(shared_.layout, shared_.settings.streams(), shared_.settings.gradient_dtype);
    const schedule::ResidencyPlan& plan = shared_.settings.plan;
    if (!shared_.step().clipping.keeps_gradients()) {
        const auto places = schedule::plan_tail(shared_.layout, plan, dtypes);
        kept_ = std::make_unique<KeptGradients>(shared_.store, places, std::move(dtypes), shared_.settings.nodes);
        return;
    }
    try {
        const auto planned = schedule::plan_clipping(shared_.layout, plan, dtypes);
        shared_.states = schedule::StateCache(shared_.layout, planned.plan, shared_.settings.nodes);
        kept_ = std::make_unique<KeptGradients>(shared_.store, planned.kept, std::move(dtypes), shared_.settings.nodes);
        if (shared_.step().rules.points_follow) {
            shared_.parts.points->plan(planned.plan.budget_bytes - planned.plan.total_bytes);
        }
    } catch (const Error& error) {
        return shared_.parts.executor->tell(shared_.machine.fail(error));
    }
    shared_.parts.writing->post([this] { reserve(); });  // before any kept gradient is written
}

void Keeping::reserve() {
    try {
        shared_.room.retry([this] { kept_->reserve(); });
    } catch (const Error& error) {
        const std::lock_guard lock(shared_.mutex);
        shared_.parts.executor->break_down(error);
    }
}

void Keeping::expect(std::uint32_t block) {
    blocks_[block].chunks_to_collect = blocks_[block].chunks_to_keep = shared_.chunks_of(block);
}

void Keeping::start(std::uint32_t block) {
    expect(block);
    if (shared_.failed()) return;
    shared_.window.set_awaits_update(block, false);  // the update may come much later
    for (std::uint32_t i = 0; i < shared_.chunks_of(block); ++i) {
        const std::uint32_t chunk = shared_.layout.first_chunk(block) + i;
        if (kept_->pinned(chunk)) {
            shared_.parts.optimizers->add({chunk, Work::Kind::keep});
        } else {
            want_memory(chunk);
        }
    }
}

void Keeping::want_memory(std::uint32_t chunk) {
    waiting_.push_back(chunk);
    serve_memory();
}

void Keeping::serve_memory() {
    while (!waiting_.empty()) {
        const std::uint32_t chunk = waiting_.front();
        const std::uint32_t block = shared_.place(chunk).block;
        if (!shared_.step().given_up(block)) {
            if (!kept_->take_buffer(chunk)) return;
            if (shared_.step().blocks[block].stale()) {
                read(chunk);
                shared_.parts.states->want(chunk);
            } else if (step::is_being_updated(shared_.step().blocks[block].stage)) {
                shared_.parts.updates->chunk_has(chunk);
                shared_.parts.states->want(chunk);
            } else {
                shared_.parts.optimizers->add({chunk, Work::Kind::keep});
            }
        }
        waiting_.pop_front();
    }
}

void Keeping::read(std::uint32_t chunk) {
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->bytes = kept_->bytes(chunk);
    task->step = shared_.step_of_update(shared_.place(chunk).block);
    task->kept = true;
    task->request = kept_->read(chunk);
    shared_.parts.states->submit(std::move(task));
}

void Keeping::read_done(IoTask& task) {
    const bool right = task.request.error == 0 && kept_->checksum(task.chunk) == kept_->expected_checksum(task.chunk);
    const std::lock_guard lock(shared_.mutex);
    --shared_.reads_in_flight;
    shared_.stats.bytes_read += task.bytes;
    if (task.request.error != 0) {
        return shared_.parts.executor->break_down(kept_->failed(task.request, task.chunk));
    }
    if (!right) return shared_.parts.executor->break_down(kept_->damaged(task.chunk));
    if (!shared_.step().broken) shared_.parts.updates->chunk_has(task.chunk);
}

void Keeping::keep_one(std::uint32_t chunk) {
    const store::ChunkPlace& place = shared_.place(chunk);
    trace::Record span{
        .begin_ns = shared_.recorder.begin(), .block = place.block, .chunk = chunk, .kind = trace::Kind::keep};
    ChunkUpdate update;
    {
        const std::lock_guard lock(shared_.mutex);
        if (shared_.failed()) return release(chunk);
        span.step = static_cast<std::uint32_t>(shared_.step().progress.step() + 1);
        shared_.parts.gradients->pick_up(place.block);
        update.place = &place;
        update.gradients = shared_.parts.gradients->at(place);
        update.gradient_dtype = shared_.gradient_dtype(place.block);
        update.scale = shared_.step().average();
        update.trims = shared_.settings.trims;
    }
    keep(update, chunk);
    shared_.recorder.end(span);
    const std::lock_guard lock(shared_.mutex);
    shared_.parts.gradients->put_down(place.block);
    if (!std::isfinite(kept_->squares(chunk))) shared_.parts.executor->tell(shared_.machine.spoiled());
    chunk_collected(chunk);
    store(chunk);
}

void Keeping::keep(const ChunkUpdate& update, std::uint32_t chunk) {
    kept_->set_squares(chunk, keep_chunk(update, kept_->memory(chunk)));
    if (kept_->on_disk(chunk)) kept_->set_checksum(chunk, kept_->checksum(chunk));
}

void Keeping::chunk_collected(std::uint32_t chunk) {
    const std::uint32_t block = shared_.place(chunk).block;
    if (--blocks_[block].chunks_to_collect == 0) shared_.parts.gradients->give_back(block);
}

void Keeping::store(std::uint32_t chunk) {
    if (shared_.failed() || !kept_->on_disk(chunk) || shared_.step().is_void()) return written(chunk);
    shared_.parts.writing->write_kept(chunk);
}

void Keeping::written(std::uint32_t chunk) {
    if (on_disk(chunk)) release(chunk);
    chunk_kept(chunk);
}

void Keeping::release(std::uint32_t chunk) {
    kept_->give_buffer_back(chunk);
    serve_memory();
}

void Keeping::chunk_kept(std::uint32_t chunk) {
    const std::uint32_t block = shared_.place(chunk).block;
    if (shared_.failed() || --blocks_[block].chunks_to_keep > 0) return;
    shared_.parts.executor->tell(shared_.machine.kept(block, squares(block)));
}

// In one order, whichever came first: the same bits.
double Keeping::squares(std::uint32_t block) const {
    double sum = 0;
    for (std::uint32_t i = 0; i < shared_.chunks_of(block); ++i) {
        sum += kept_->squares(shared_.layout.first_chunk(block) + i);
    }
    return sum;
}

void Keeping::give_up(std::uint32_t chunk, bool collected) {
    if (!collected) chunk_collected(chunk);
    written(chunk);
}

void Keeping::end_step() {
    if (!kept_) return;
    for (std::uint32_t chunk = 0; chunk < shared_.layout.chunks().size(); ++chunk) {
        if (!shared_.step().blocks[shared_.place(chunk).block].stale()) kept_->give_buffer_back(chunk);
    }
}

void Keeping::drop(std::uint32_t chunk) {
    if (kept_) kept_->give_buffer_back(chunk);
}

}  // namespace luwu::pipeline
