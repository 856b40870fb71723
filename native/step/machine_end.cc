// The machine's events and decisions at the end of an attempt: nothing is under way any more, so it is committed, taken
// back, prepared or clipped.
#include <cmath>
#include <utility>

#include "step/agreement.h"
#include "step/machine.h"

namespace luwu::step {

void Machine::try_end() {
    const bool decided = state_.stage == Stage::decided;
    if (state_.failed() || state_.busy_blocks > 0 || (state_.stage != Stage::closing && !decided)) return;
    if (state_.is_void()) {
        // A rolled-back attempt counts at all servers or at none: the last word on it comes when all have ended it.
        const bool asks = state_.rules.prepares && !decided && state_.verdict != Verdict::lost;
        return asks ? prepare(state_.ending_of_void()) : take_back_all();
    }
    if (state_.owed || state_.waits_for_point()) return;  // at most one step that was answered is owed anything
    if (!state_.may_keep() && (decided || !state_.rules.prepares)) return write_record();
    double squares = decided ? state_.squares : 0;
    for (const Block& block : state_.blocks) {
        if (!decided && is_kept(block.stage)) squares += block.squares;  // in one order: the same bits
    }
    if (decided || !state_.rules.prepares) return end_kept(squares);
    prepare({kPrepared, state_.clipping.limits() ? squares : kNoSquares});
}

void Machine::take_back_all() {
    TakeBack action;
    for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
        if (is_updated(state_.blocks[block].stage)) action.blocks.push_back(block);
    }
    state_.stage = stage_after(state_.stage, StageEvent::restore);
    actions_.emplace_back(std::move(action));
}

// All is done that the last word on the step does not change, and somebody has it.
void Machine::prepare(const Ending& ending) {
    state_.stage = stage_after(state_.stage, StageEvent::prepare);
    state_.members.answer(ending);
    actions_.emplace_back(Answer{ending});
    fail_if_nobody_decides();
}

void Machine::fail_if_nobody_decides() {
    if (state_.failed() || state_.stage != Stage::prepared || !state_.members.all_absent()) return;
    state_.failure = nobody_decides(state_.progress.step() + 1);
    actions_.emplace_back(Fail{*state_.failure});
}

void Machine::end_kept(double squares) {
    state_.squares = state_.clipping.limits() ? squares : kNoSquares;
    if (!state_.clipping.speculates()) return settle();
    const bool clips = Clipping::decide(squares, state_.settings.gradient.max_norm).clips;
    if (!clips) return state_.rules.tail.follows() ? settle() : write_record();
    TakeBack action;
    for (const std::uint32_t block : state_.arrivals) {
        if (is_updated(state_.blocks[block].stage)) action.blocks.push_back(block);
    }
    state_.stage = stage_after(state_.stage, StageEvent::redo);
    actions_.emplace_back(std::move(action));
}

// Answers the step now. The updates that it lacks follow, and after them its record where it is a commit point.
void Machine::settle() {
    const bool taken_back = state_.stage == Stage::redoing;
    const auto [clips, factor] = Clipping::decide(state_.squares, state_.settings.gradient.max_norm);
    if (clips) state_.progress.note_clipped();
    state_.clipping.settled(clips);
    store::CommitRecord record = state_.progress.next_record(state_.settings.gradient.loss_scale);
    const bool commits = state_.point_is_due || state_.rules.commit_points.has(record.step);
    const float average = state_.average();
    Settle action{{}, clips ? static_cast<float>(static_cast<double>(average) * factor) : average, commits};
    Owed owed;
    for (const std::uint32_t block : state_.arrivals) {
        Block& entry = state_.blocks[block];
        if (taken_back || !is_updated(entry.stage)) {
            entry.debt = Debt::update;
            ++record.counts[block];
            action.blocks.push_back(block);
        } else if (is_being_written(entry.stage)) {
            entry.debt = Debt::record;
        }
        if (entry.owes()) ++owed.blocks;
    }
    if (commits) owed.record = std::move(record);
    owed.follows = commits && state_.rules.points_follow;
    if (owed.blocks > 0 || owed.record) state_.owed = std::move(owed);
    actions_.emplace_back(std::move(action));
    finish(kCommitted);
    if (state_.owed) try_record();
}

// Writes the record of the answered step when all that it owes is on the disk.
void Machine::try_record() {
    if (state_.owed->blocks > 0) return;
    if (state_.owed->follows) {
        follow_point();
    } else if (state_.owed->record) {
        actions_.emplace_back(WriteRecord{*state_.owed->record});
    } else {
        no_more_owed();
    }
}

// The answered step is owed nothing more: its records are written beside later steps.
void Machine::follow_point() {
    state_.point = Point{*std::move(state_.owed->record)};
    state_.point_is_due = false;
    actions_.emplace_back(FollowPoint{});
    no_more_owed();
}

// The updates of the answered step are in memory, and a commit point's are on the disk, with its record, or follow.
void Machine::no_more_owed() {
    state_.owed.reset();
    try_flush();
    if (state_.failed()) return;
    for (const std::uint32_t block : state_.arrivals) {
        if (state_.blocks[block].stage == BlockStage::waiting_to_update) update(block);
    }
    try_end();
}

// Writes what is in memory alone, as if the answered step owed it. The step under way is not decided before that.
void Machine::try_flush() {
    if (!state_.flush_is_due || state_.owed || state_.point || state_.broken) return;
    state_.flush_is_due = false;
    if (state_.progress.durable_step() == state_.progress.step()) return;
    Flush action;
    for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
        if (!state_.progress.is_ahead(block)) continue;
        state_.blocks[block].debt = Debt::record;
        action.blocks.push_back(block);
    }
    state_.owed = Owed{state_.progress.last_record(), static_cast<std::uint32_t>(action.blocks.size())};
    actions_.emplace_back(std::move(action));
    try_record();
}

void Machine::write_record() {
    state_.stage = stage_after(state_.stage, StageEvent::record);
    actions_.emplace_back(WriteRecord{state_.progress.next_record(state_.settings.gradient.loss_scale)});
}

void Machine::finish(StepEnd end) {
    state_.stage = stage_after(state_.stage, StageEvent::end);
    if (end == kCommitted) {
        state_.progress.end_committed(state_.settings.gradient.loss_scale);
    } else if (end == kVoid) {
        state_.progress.end_void();
    } else {
        state_.progress.end_rolled_back();
    }
    for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
        Block& entry = state_.blocks[block];
        to(block, BlockEvent::end);
        entry.arrived = 0;
        entry.came.assign(entry.came.size(), false);
    }
    state_.stream_pushes = 0;
    state_.verdict = Verdict::good;
    state_.last_end = {end, std::exchange(state_.squares, kNoSquares)};
    state_.members.answer(state_.last_end);
    state_.members.end_step();
    actions_.emplace_back(EndStep{state_.last_end, std::exchange(state_.arrivals, {})});
}

}  // namespace luwu::step
