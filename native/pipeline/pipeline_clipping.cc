// Clipping by the global norm: gradients are kept until all are there, then the step is decided and answered, and its
// updates follow ("settle"), in the order in which the next pass pulls. docs/decisions/0007-clipping.md says why.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/keep.h"
#include "pipeline/pipeline.h"

namespace luwu::pipeline {

// Before the first state is read: memory that was planned for states can still be given to gradients.
void Pipeline::choose_clipping(bool clips) {
    if (!clips_ && clips) {
        try {
            const std::vector<kernels::Dtype> dtypes = kept_dtypes();
            const schedule::ClippingPlan planned = schedule::plan_clipping(layout_, settings_.plan, dtypes);
            states_ = schedule::StateCache(layout_, planned.plan);
            kept_ = std::make_unique<KeptGradients>(store_, planned.kept, dtypes);
            writer_->post([this] { reserve_scratch(); });  // the writer does this before it writes any kept gradient
        } catch (const Error& error) {
            return fail_locked(error);
        }
    } else if (clips_ && *clips_ != clips) {
        return fail_locked(Error(ErrorKind::order, std::string("a step began ") + (clips ? "with" : "without") +
                                                       " max_grad_norm and the run's first one " +
                                                       (clips ? "without" : "with") + "; give every step one or none"));
    }
    clips_ = clips;
    // What one step did the next one probably does, too. One server of several cannot take updates back once another
    // has written the record of the step before.
    speculates_ = kept_ != nullptr && speculates_next_ && !settings_.prepares;
}

void Pipeline::reserve_scratch() {
    try {
        room_.retry([this] { kept_->reserve(); });
    } catch (const Error& error) {
        const std::lock_guard lock(mutex_);
        break_locked(error);
    }
}

std::vector<kernels::Dtype> Pipeline::kept_dtypes() const {
    std::vector<kernels::Dtype> dtypes;
    for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
        dtypes.push_back(kernels::kept_dtype(settings_.workers, gradient_dtype(block)));
    }
    return dtypes;
}

void Pipeline::keep_gradients(std::uint32_t block) {
    Block& entry = blocks_[block];
    ++keeping_blocks_;
    entry.chunks_to_collect = entry.chunks_to_keep = static_cast<std::uint32_t>(layout_.chunks_of(block).size());
    if (speculates_) return;           // each chunk just before its update
    entry.keep_waits = entry.decided;  // the gradient before is still needed
    entry.keep_waits ? hurry(block) : start_keeping(block);
}

void Pipeline::start_keeping(std::uint32_t block) {
    if (failure_) return;
    for (std::uint32_t i = 0; i < layout_.chunks_of(block).size(); ++i) {
        const std::uint32_t chunk = layout_.first_chunk(block) + i;
        if (kept_->on_disk(chunk)) {
            want_kept_memory(chunk);
        } else {
            update_queue_.push_back({chunk, true});
            update_ready_.notify_one();
        }
    }
}

void Pipeline::want_kept_memory(std::uint32_t chunk) {
    waiting_kept_.push_back(chunk);
    serve_kept_memory();
}

void Pipeline::serve_kept_memory() {
    while (!waiting_kept_.empty()) {
        const std::uint32_t chunk = waiting_kept_.front();
        const Block& block = blocks_[layout_.chunks()[chunk].block];
        if (!given_up(block)) {
            if (!kept_->take_buffer(chunk)) return;
            if (block.decided) {
                start_kept_read(chunk);
                want_states(chunk);
            } else if (speculates_) {
                chunk_has(chunk);
                want_states(chunk);
            } else {
                update_queue_.push_back({chunk, true});
                update_ready_.notify_one();
            }
        }
        waiting_kept_.pop_front();
    }
}

void Pipeline::start_kept_read(std::uint32_t chunk) {
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->bytes = kept_->bytes(chunk);
    task->kept = true;
    task->request = kept_->read(chunk);
    ++reads_in_flight_;
    state_reader_->submit(std::move(task));
}

void Pipeline::kept_read(IoTask& task) {
    const bool right = task.request.error == 0 && kept_->checksum(task.chunk) == kept_->expected_checksum(task.chunk);
    const std::lock_guard lock(mutex_);
    --reads_in_flight_;
    stats_.bytes_read += task.bytes;
    if (task.request.error != 0) return break_locked(kept_->failed(task.request, task.chunk));
    if (!right) return break_locked(kept_->damaged(task.chunk));
    if (!broken_) chunk_has(task.chunk);
}

void Pipeline::keep_one(std::uint32_t chunk) {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    Block& block = blocks_[place.block];
    ChunkUpdate update;
    {
        const std::lock_guard lock(mutex_);
        if (failure_) return release_kept(chunk);
        ++block.chunks_in_hand;
        update.place = &place;
        update.gradients = gradients_at(place);
        update.gradient_dtype = gradient_dtype(place.block);
        update.scale = average();
    }
    keep(update, chunk);
    const std::lock_guard lock(mutex_);
    put_down(chunk);
    if (!std::isfinite(kept_->squares(chunk))) poisoned_ = true;
    chunk_collected(chunk);
    store_kept(chunk);
}

void Pipeline::keep(const ChunkUpdate& update, std::uint32_t chunk) {
    const std::vector<const void*> buffers(update.gradients.begin(), update.gradients.end());
    const kernels::Gradients gradients{buffers.data(), buffers.size(), update.gradient_dtype, update.scale};
    kept_->set_squares(chunk, kernels::keep_gradients(kept_->memory(chunk), gradients, update.place->elements));
    if (kept_->on_disk(chunk)) kept_->set_checksum(chunk, kept_->checksum(chunk));
}

void Pipeline::chunk_collected(std::uint32_t chunk) {
    Block& block = blocks_[layout_.chunks()[chunk].block];
    if (--block.chunks_to_collect > 0) return;
    for (const Reply& reply : std::exchange(block.push_replies, {})) reply({});
}

void Pipeline::store_kept(std::uint32_t chunk) {
    if (failure_ || !kept_->on_disk(chunk) || step_is_void()) {
        release_kept(chunk);
        return chunk_kept(chunk);
    }
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->bytes = kept_->bytes(chunk);
    task->kept = true;
    write(std::move(task));
}

void Pipeline::kept_written(IoTask& task) {
    release_kept(task.chunk);
    chunk_kept(task.chunk);
}

void Pipeline::release_kept(std::uint32_t chunk) {
    kept_->give_buffer_back(chunk);
    serve_kept_memory();
}

void Pipeline::chunk_kept(std::uint32_t chunk) {
    Block& block = blocks_[layout_.chunks()[chunk].block];
    if (failure_ || --block.chunks_to_keep > 0) return;
    --keeping_blocks_;
    block.kept = true;
    try_finish_step();
}

// Of a step that will be rolled back.
void Pipeline::give_up_keeping(std::uint32_t chunk) {
    if (!speculates_) chunk_collected(chunk);
    release_kept(chunk);
    chunk_kept(chunk);
}

// In one order, whichever came first: the same bits.
double Pipeline::sum_of_squares() const {
    double total = 0;
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
        if (!blocks_[block].kept) continue;
        double sum = 0;
        for (std::uint32_t i = 0; i < layout_.chunks_of(block).size(); ++i) {
            sum += kept_->squares(layout_.first_chunk(block) + i);
        }
        total += sum;
    }
    return total;
}

void Pipeline::end_clipped_step(double squares) {
    squares_ = squares;
    // torch.nn.utils.clip_grad_norm_
    const double factor = std::min(1.0, *gradient_.max_norm / (std::sqrt(squares) + 1e-6));
    const bool clips = factor < 1.0;
    if (speculates_ && !clips) return start_commit();
    if (speculates_) {
        if (!may_restore()) return;
        restore_updated_blocks();
        ++stats_.redone;
    }
    if (clips) ++stats_.clipped;
    speculates_next_ = !clips;
    settle(clips ? static_cast<float>(static_cast<double>(average()) * factor) : average());
}

void Pipeline::settle(float scale) {
    Settling next;
    next.groups = groups_;
    next.scale = scale;
    next.record = next_record();
    for (const std::uint32_t block : order_of_next_pass()) {
        Block& entry = blocks_[block];
        entry.decided = entry.stale = true;
        ++next.record.counts[block];
        ++next.blocks;
        next.due.push_back(block);
    }
    if (next.blocks == 0) return start_commit();
    const std::vector<std::uint32_t> order(next.due.begin(), next.due.end());
    next.next_order = speculates_next_ ? recorded_pushes_ : order;
    settling_ = std::move(next);
    finish_step(kCommitted, order);
}

// The blocks of this step: those that are pulled in the order of their pulls, the others against that of their pushes.
std::vector<std::uint32_t> Pipeline::order_of_next_pass() {
    pass_.end_step();
    std::vector<std::uint32_t> blocks(recorded_pushes_.rbegin(), recorded_pushes_.rend());
    const auto place = [this](std::uint32_t block) {
        return pass_.first_use(block).value_or(std::numeric_limits<std::uint64_t>::max());
    };
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](std::uint32_t left, std::uint32_t right) { return place(left) < place(right); });
    return blocks;
}

// Somebody waits for the block.
void Pipeline::hurry(std::uint32_t block) {
    if (!settling_) return;
    auto& due = settling_->due;
    const auto found = std::find(due.begin(), due.end(), block);
    if (found != due.end()) {
        due.erase(found);
        due.push_front(block);
    }
    start_due_updates();
}

// As far as the window has places. While workers pull, updates do not run ahead of them so far that blocks would have
// to be read again.
void Pipeline::start_due_updates() {
    if (!settling_ || broken_) return;
    const bool working = std::any_of(begun_.begin(), begun_.end(), [](bool begun) { return begun; });
    const bool nobody_pulls = failure_ || closing_ || !working;
    auto& due = settling_->due;
    while (!due.empty()) {
        const std::uint32_t block = due.front();
        const bool wanted = !blocks_[block].waiting_pulls.empty() || blocks_[block].keep_waits;
        if (!start_due_update(block, nobody_pulls || wanted)) return;
        due.pop_front();
    }
}

// False: no place now.
bool Pipeline::start_due_update(std::uint32_t block, bool at_any_price) {
    using State = schedule::WindowCache::State;
    if (window_.state(block) == State::absent) {
        if (!window_.place(block, at_any_price ? std::nullopt : pass_.next_use(block))) return false;
        // The update writes a copy of 16 bits anew from the master: it needs the copy's place, not its contents.
        if (layout_.states_have_master(block)) {
            window_.read_done(block);
        } else {
            start_parameter_read(block);
        }
    }
    if (window_.state(block) == State::resident) {
        start_chunks(block);
    } else {
        blocks_[block].update_needs_parameters = true;
    }
    return true;
}

void Pipeline::hand_out_updated(std::uint32_t block) {
    blocks_[block].stale = false;
    for (const Reply& reply : std::exchange(blocks_[block].waiting_pulls, {})) deliver(block, reply);
}

void Pipeline::block_settled(std::uint32_t block) {
    if (--settling_->blocks == 0) {
        writer_->post([this] { write_settled(); });
    }
    if (std::exchange(blocks_[block].keep_waits, false)) start_keeping(block);
}

void Pipeline::write_settled() {
    store::CommitRecord record;
    {
        const std::lock_guard lock(mutex_);
        record = settling_->record;
    }
    std::optional<Error> error;
    try {
        room_.retry([&] { store_.commit(record); });
    } catch (const Error& caught) {
        error = caught;
    }
    {
        const std::lock_guard lock(mutex_);
        if (error) return break_locked(*error);
        may_write_ = false;
        settling_.reset();
        settled_.notify_all();
        for (const std::uint32_t block : std::exchange(postponed_, {})) start_update(block);
        try_finish_step();
    }
    settings_.on_commit();
}

std::optional<Error> Pipeline::wait_until_written() {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [this] { return !settling_ || broken_; });
    return settling_ ? broken_ : std::nullopt;
}

}  // namespace luwu::pipeline
