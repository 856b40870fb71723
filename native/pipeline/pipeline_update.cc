// Steps 4 to 6: states in, the update, records out, and the commit or roll-back that ends a step.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "pipeline/pipeline.h"

namespace luwu::pipeline {

void Pipeline::begin_update(std::uint32_t block) {
    Block& entry = blocks_[block];
    recorded_pushes_.push_back(block);
    if (step_is_void()) {  // nothing of this step will stay: give the gradients back
        for (const Reply& reply : std::exchange(entry.push_replies, {})) reply({});
        return;
    }
    if (kept_) keep_gradients(block);
    if (kept_ && !speculates_) return;
    ++updating_blocks_;
    if (settling_) return postponed_.push_back(block);
    start_update(block);
}

void Pipeline::start_update(std::uint32_t block) {
    Block& entry = blocks_[block];
    if (given_up(entry)) return;
    // The update writes a copy of 16 bits anew from the master: it needs the copy's place, not its contents.
    if (layout_.states_have_master(block) && window_.state(block) == schedule::WindowCache::State::absent &&
        window_.place(block)) {
        window_.read_done(block);
    }
    if (window_.state(block) == schedule::WindowCache::State::resident) return start_chunks(block);
    entry.update_needs_parameters = true;
    want_parameters(block);
}

void Pipeline::start_chunks(std::uint32_t block) {
    window_.hold(block);
    window_.set_awaits_update(block, false);
    Block& entry = blocks_[block];
    entry.updating = true;
    ++updates_under_way_;
    const auto chunks = static_cast<std::uint32_t>(layout_.chunks_of(block).size());
    entry.chunks_to_update = chunks;
    entry.chunks_to_write = chunks;
    for (std::uint32_t i = 0; i < chunks; ++i) want_chunk(layout_.first_chunk(block) + i);
}

void Pipeline::want_chunk(std::uint32_t chunk) {
    ++stats_.chunks_updated;
    const bool from_disk = kept_ && kept_->on_disk(chunk);
    chunk_needs_[chunk] = from_disk ? 2 : 1;
    from_disk ? want_kept_memory(chunk) : want_states(chunk);
}

// Behind memory for a kept gradient, where the chunk needs both: chunks that wait for such memory with states in hand,
// and chunks that have it and wait for states, would wait for each other.
void Pipeline::want_states(std::uint32_t chunk) {
    switch (states_.state(chunk)) {
        case schedule::StateCache::State::ready:
            return states_there(chunk);
        case schedule::StateCache::State::reading:
            chunk_wanted_[chunk] = true;
            break;
        default:
            waiting_chunks_.push_back(chunk);
            serve_state_demand();
    }
    ++stats_.states_waited;
}

void Pipeline::serve_state_demand() {
    while (!waiting_chunks_.empty()) {
        const std::uint32_t chunk = waiting_chunks_.front();
        const bool needed = !given_up(blocks_[layout_.chunks()[chunk].block]);
        if (needed && !states_.place(chunk, true)) return;
        waiting_chunks_.pop_front();
        if (!needed) continue;
        chunk_wanted_[chunk] = true;
        start_state_read(chunk);
    }
}

// Along the order of the last step's updates, as far as buffers are free: the next step's first states are read while
// its forward pass runs.
void Pipeline::prefetch_states() {
    if (!waiting_chunks_.empty() || failure_) return;
    if (settling_ && settling_->due.empty() && !std::exchange(settling_->reads_on, true)) {
        push_order_ = settling_->next_order;
        prefetch_block_ = prefetch_chunk_ = 0;
    }
    const bool settles = settling_ && !settling_->reads_on;
    for (std::size_t seen = 0; seen <= push_order_.size() && !push_order_.empty();) {
        const std::uint32_t block = push_order_[prefetch_block_];
        const auto chunks = static_cast<std::uint32_t>(layout_.chunks_of(block).size());
        if (blocks_[block].updating && settling_ && settling_->reads_on) return;  // its turn comes when it is written
        const bool had_its_turn = blocks_[block].updated && (step_is_void() || !prefetches_next_step_);
        const bool skip = blocks_[block].updating || had_its_turn || (settles && !blocks_[block].stale);
        while (!skip && prefetch_chunk_ < chunks) {
            const auto chunk = layout_.first_chunk(block) + static_cast<std::uint32_t>(prefetch_chunk_);
            if (states_.state(chunk) == schedule::StateCache::State::absent) {
                if (!states_.place(chunk, false)) return;
                start_state_read(chunk);
            }
            ++prefetch_chunk_;
        }
        prefetch_chunk_ = 0;
        prefetch_block_ = (prefetch_block_ + 1) % push_order_.size();
        if (prefetch_block_ == 0) prefetches_next_step_ = true;
        ++seen;
    }
}

void Pipeline::start_state_read(std::uint32_t chunk) {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->count = blocks_[place.block].count;
    task->bytes = place.state_bytes();
    task->request = store_.read_states(place, task->count, states_.memory(chunk));
    ++reads_in_flight_;
    state_reader_->submit(std::move(task));
}

void Pipeline::states_read(IoTask& task) {
    if (task.kept) return kept_read(task);
    const store::ChunkPlace& place = layout_.chunks()[task.chunk];
    const std::lock_guard lock(mutex_);
    --reads_in_flight_;
    stats_.bytes_read += task.bytes;
    try {
        if (task.request.error != 0) throw store_.failed(task.request, place, task.count);
        store_.check_header(store::load_chunk_header(states_.memory(task.chunk)), place, task.count);
    } catch (const Error& error) {
        return break_locked(error);
    }
    if (broken_) return;
    states_.read_done(task.chunk);
    const bool wanted = chunk_wanted_[task.chunk] && !given_up(blocks_[place.block]);
    chunk_wanted_[task.chunk] = false;
    if (wanted) states_there(task.chunk);
    serve_state_demand();
    try_finish_step();
}

void Pipeline::states_there(std::uint32_t chunk) {
    states_.claim(chunk);
    chunk_has(chunk);
}

void Pipeline::chunk_has(std::uint32_t chunk) {
    if (--chunk_needs_[chunk] > 0) return;
    update_queue_.push_back({chunk, false});
    update_ready_.notify_one();
}

void Pipeline::optimizer_loop() {
    pthread_setname_np(pthread_self(), "luwu-5-update");
    std::unique_lock lock(mutex_);
    while (true) {
        update_ready_.wait(lock, [this] { return stopping_ || !update_queue_.empty(); });
        if (stopping_) return;
        const auto [chunk, keeps] = update_queue_.front();
        update_queue_.pop_front();
        if (is_void(blocks_[layout_.chunks()[chunk].block])) {
            if (keeps || speculates_) give_up_keeping(chunk);
            if (!keeps) chunk_updated(chunk, false);
            continue;
        }
        lock.unlock();
        keeps ? keep_one(chunk) : update_one(chunk);
        lock.lock();
    }
}

std::vector<const std::byte*> Pipeline::gradients_at(const store::ChunkPlace& place) const {
    std::vector<const std::byte*> gradients;
    for (const std::byte* gradient : blocks_[place.block].gradients) {
        gradients.push_back(gradient + place.first_element * kernels::size_of(gradient_dtype(place.block)));
    }
    return gradients;
}

ChunkUpdate Pipeline::make_update(std::uint32_t chunk) const {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    const Block& block = blocks_[place.block];
    ChunkUpdate update;
    update.place = &place;
    update.dtype = layout_.dtype(place.block);
    update.optimizer = layout_.shape().optimizer;
    update.count = block.count + 1;
    update.parameters = parameters_of(place);
    update.states = states_.memory(chunk);
    update.verify = states_.unverified(chunk);
    update.segments = block.segments;
    if (block.decided) {
        update.gradients = {kept_->memory(chunk)};
        update.gradient_dtype = kept_->dtype(place.block);
        update.scale = settling_->scale;
    } else {
        update.gradients = gradients_at(place);
        update.gradient_dtype = gradient_dtype(place.block);
        update.scale = average();
    }
    return update;
}

void Pipeline::update_one(std::uint32_t chunk) {
    const auto begin = std::chrono::steady_clock::now();
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    ChunkUpdate update;
    const kernels::Optimizer& optimizer = *layout_.shape().optimizer;
    std::vector<kernels::Step> groups;
    std::uint64_t count = 0;
    bool keeps = false;
    {
        const std::lock_guard lock(mutex_);
        Block& block = blocks_[place.block];
        if (given_up(block)) return;
        ++block.chunks_in_hand;
        count = block.count;
        keeps = kept_ && !block.decided;
        for (const GroupSettings& group : block.decided ? settling_->groups : groups_) {
            groups.push_back(optimizer.prepare(group, count + 1));
        }
        update = make_update(chunk);
    }
    update.groups = groups;
    if (keeps) keep(update, chunk);
    const ChunkUpdateResult result = update_chunk(update);
    if (result.finite) {
        store::ChunkHeader header = store_.make_header(place, count + 1);
        header.parameter_crc = result.parameter_crc;
        header.state_crc = result.state_crc;
        store::seal(header);
        std::memcpy(update.states, &header, sizeof header);
    }
    const auto spent = std::chrono::steady_clock::now() - begin;
    const std::lock_guard lock(mutex_);
    stats_.update_nanoseconds +=
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    stats_.elements_updated += place.elements;
    put_down(chunk);
    if (result.damaged_plane != 0) return break_locked(store_.damaged(place, count, result.damaged_plane));
    if (!result.finite) poisoned_ = true;
    if (keeps) store_kept(chunk);
    chunk_updated(chunk, !is_void(blocks_[place.block]));
}

void Pipeline::put_down(std::uint32_t chunk) {
    Block& block = blocks_[layout_.chunks()[chunk].block];
    --block.chunks_in_hand;
    if (failure_) answer_failed_pushes(block);
}

void Pipeline::chunk_updated(std::uint32_t chunk, bool write) {
    const store::ChunkPlace& place = layout_.chunks()[chunk];
    Block& block = blocks_[place.block];
    if (given_up(block)) return;
    if (block.decided) {
        release_kept(chunk);
    } else {
        block.updated = true;  // memory holds something other than the committed version from here on
    }
    if (--block.chunks_to_update == 0) {
        if (block.decided) {
            hand_out_updated(place.block);
        } else {
            for (const Reply& reply : std::exchange(block.push_replies, {})) reply({});
        }
    }
    if (!write) return chunk_written(chunk);
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->count = block.count + 1;
    task->bytes = place.record_bytes();
    if (may_write_) return this->write(std::move(task));
    first_writes_.push_back(std::move(task));
    if (first_writes_.size() == 1) writer_->post([this] { prepare_to_write(); });
}

void Pipeline::chunk_written(std::uint32_t chunk) {
    states_.release(chunk);
    const std::uint32_t number = layout_.chunks()[chunk].block;
    Block& block = blocks_[number];
    if (--block.chunks_to_write == 0) {
        ++block.count;
        block.updating = false;
        --updates_under_way_;
        window_.unhold(number);
        if (std::exchange(block.decided, false)) {
            block_settled(number);
        } else {
            --updating_blocks_;
        }
        retry_waiting_blocks();
    }
    serve_state_demand();
    prefetch_states();
    try_finish_step();
}

void Pipeline::commit(std::uint32_t worker, bool roll_back, Reply reply) {
    const std::lock_guard lock(mutex_);
    if (!failure_ && !begun_[worker]) {
        fail_locked(
            Error(ErrorKind::order, "worker " + std::to_string(worker) + " ended a step that it had not begun"));
    }
    if (failure_) return reply({false, 0});
    begun_[worker] = false;
    roll_back_ = roll_back_ || roll_back;
    commit_replies_.push_back(std::move(reply));
    closing_ = commit_replies_.size() == settings_.workers;
    if (roll_back_) return_unfinished_pushes();  // their workers may wait for them before they vote
    try_finish_step();
}

void Pipeline::try_finish_step() {
    if (!closing_ || prepared_ || committing_ || failure_) return;
    return_unfinished_pushes();
    check_all_pushed();
    start_due_updates();  // all that is left to wait for
    if (failure_ || updating_blocks_ > 0 || keeping_blocks_ > 0) return;
    if (step_is_void()) {
        if (may_restore()) roll_back();
    } else if (settling_) {
        return;  // at most one step that was answered is not on the disk yet
    } else if (settings_.prepares && !decided_) {
        prepare();
    } else if (kept_) {
        end_clipped_step(decided_ ? squares_ : sum_of_squares());
    } else {
        start_commit();
    }
}

// Nobody looks at what this step has updated.
bool Pipeline::may_restore() const {
    return std::none_of(blocks_.begin(), blocks_.end(), [this](const Block& block) {
        const auto number = static_cast<std::uint32_t>(&block - blocks_.data());
        return block.updated && (reads_in_flight_ > 0 || window_.holds(number) > 0);
    });
}

// A block that some workers pushed and others did not: an error, unless the step is rolled back anyway.
void Pipeline::return_unfinished_pushes() {
    for (std::size_t number = 0; number < blocks_.size(); ++number) {
        Block& block = blocks_[number];
        if (block.push_replies.empty() || block.arrived == settings_.workers) continue;
        if (!step_is_void()) {
            return fail_locked(
                Error(ErrorKind::order, "block '" + layout_.shape().blocks[number].name + "' was pushed by " +
                                            std::to_string(block.arrived) + " of " + std::to_string(settings_.workers) +
                                            " workers; every worker must run the same blocks in a step"));
        }
        for (const Reply& reply : std::exchange(block.push_replies, {})) reply({});
    }
}

// A commit has all trainable blocks, each one version on: docs/store-format.md.
void Pipeline::check_all_pushed() {
    if (failure_ || step_is_void()) return;
    for (std::size_t number = 0; number < blocks_.size(); ++number) {
        const store::BlockShape& shape = layout_.shape().blocks[number];
        if (!shape.trainable || blocks_[number].arrived == settings_.workers) continue;
        return fail_locked(Error(ErrorKind::order, "block '" + shape.name +
                                                       "' was pushed by no worker; every worker must push all "
                                                       "trainable blocks in a step, zeros where there is nothing"));
    }
}

void Pipeline::prepare() {
    prepared_ = true;
    const double squares = kept_ ? sum_of_squares() : kNoSquares;
    for (const Reply& reply : std::exchange(commit_replies_, {})) reply({true, kPrepared, squares});
}

void Pipeline::decide(bool commits, Reply reply, double squares) {
    const std::lock_guard lock(mutex_);
    if (failure_) return reply({false, 0});
    if (!closing_) return reply(last_end_);  // the step that another worker has decided, too
    commit_replies_.push_back(std::move(reply));
    if (!std::exchange(prepared_, false)) return;
    decided_ = true;
    squares_ = squares;
    roll_back_ = !commits || (kept_ && !std::isfinite(squares));
    try_finish_step();
}

void Pipeline::start_commit() {
    committing_ = true;
    writer_->post([this] { write_commit(); });
}

store::CommitRecord Pipeline::next_record() const {
    store::CommitRecord record;
    record.step = stats_.step + 1;
    record.attempts = stats_.attempts + 1;
    record.rolled_back = stats_.rolled_back;
    record.loss_scale = gradient_.loss_scale;
    for (const Block& block : blocks_) record.counts.push_back(block.count);
    return record;
}

void Pipeline::write_commit() {
    store::CommitRecord record;
    {
        const std::lock_guard lock(mutex_);
        record = next_record();
    }
    try {
        room_.retry([&] { store_.commit(record); });
    } catch (const Error& error) {
        const std::lock_guard lock(mutex_);
        return break_locked(error);
    }
    {
        const std::lock_guard lock(mutex_);
        may_write_ = false;
        finish_step(kCommitted, recorded_pushes_);
    }
    settings_.on_commit();
}

void Pipeline::restore_updated_blocks() {
    const auto updated = [](const Block& block) { return block.updated; };
    // If no block was updated, nothing was written, and the commit of the step before may be under way.
    if (std::any_of(blocks_.begin(), blocks_.end(), updated)) store_.begin_again();
    for (std::uint32_t number = 0; number < blocks_.size(); ++number) {
        Block& block = blocks_[number];
        if (!std::exchange(block.updated, false)) continue;
        block.count = store_.committed().counts[number];
        if (window_.state(number) == schedule::WindowCache::State::resident) window_.invalidate(number);
        for (std::uint32_t i = 0; i < layout_.chunks_of(number).size(); ++i) {
            states_.invalidate(layout_.first_chunk(number) + i);
        }
    }
}

void Pipeline::roll_back() {
    restore_updated_blocks();
    squares_ = kept_ && !roll_back_ ? std::numeric_limits<double>::quiet_NaN() : kNoSquares;
    ++stats_.rolled_back;
    finish_step(roll_back_ ? kRolledBack : kNotFinite, {});
}

// `order` is that of the updates that the next step will have, as far as anybody knows.
void Pipeline::finish_step(StepEnd end, const std::vector<std::uint32_t>& order) {
    ++stats_.attempts;
    for (std::uint32_t number = 0; number < blocks_.size(); ++number) {
        Block& block = blocks_[number];
        block.updated = block.kept = false;
        block.arrived = 0;
        std::fill(block.gradients.begin(), block.gradients.end(), nullptr);
        window_.set_awaits_update(number, false);
    }
    if (end == kCommitted) {
        ++stats_.step;
        stats_.loss_scale = gradient_.loss_scale;
        pass_.end_step();
        push_order_ = order;
        prefetch_block_ = prefetch_chunk_ = 0;  // what is there already is passed over
        prefetches_next_step_ = false;
    }
    recorded_pushes_.clear();
    roll_back_ = poisoned_ = closing_ = decided_ = committing_ = false;
    last_end_ = {true, end, squares_};
    squares_ = kNoSquares;
    for (const Reply& reply : std::exchange(commit_replies_, {})) reply(last_end_);
    retry_waiting_blocks();
    prefetch_states();
    if (!failure_) {
        for (std::uint32_t worker = 0; worker < settings_.workers; ++worker) prefetch_parameters(worker);
    }
}

}  // namespace luwu::pipeline
