// The machine's events and decisions at the end of an attempt: nothing is under way any more, so it is committed, taken
// back, prepared or clipped.
#include <cmath>
#include <utility>

#include "step/machine.h"

namespace luwu::step {

void Machine::try_end() {
    const bool decided = state_.stage == Stage::decided;
    if (state_.failed() || state_.busy_blocks > 0 || (state_.stage != Stage::closing && !decided)) return;
    if (state_.is_void()) {
        TakeBack action;
        for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
            if (is_updated(state_.blocks[block].stage)) action.blocks.push_back(block);
        }
        state_.stage = stage_after(state_.stage, StageEvent::restore);
        actions_.emplace_back(std::move(action));
        return;
    }
    if (state_.owed) return;  // at most one step that was answered is not on the disk yet
    if (!state_.clipping.keeps_gradients() && (decided || !state_.rules.prepares)) return write_record();
    double squares = decided ? state_.squares : 0;
    for (const Block& block : state_.blocks) {
        if (!decided && is_kept(block.stage)) squares += block.squares;  // in one order: the same bits
    }
    if (decided || !state_.rules.prepares) return end_clipped(squares);
    state_.stage = stage_after(state_.stage, StageEvent::prepare);
    const Ending ending{kPrepared, state_.clipping.keeps_gradients() ? squares : kNoSquares};
    state_.members.answer(ending);
    actions_.emplace_back(Answer{ending});
}

void Machine::end_clipped(double squares) {
    state_.squares = squares;
    const bool clips = Clipping::decide(squares, *state_.settings.gradient.max_norm).clips;
    if (!state_.clipping.speculates()) return settle();
    if (!clips) return write_record();
    TakeBack action;
    for (const std::uint32_t block : state_.arrivals) {
        if (is_updated(state_.blocks[block].stage)) action.blocks.push_back(block);
    }
    state_.stage = stage_after(state_.stage, StageEvent::redo);
    actions_.emplace_back(std::move(action));
}

// Answers the step now. Its updates follow, and their record after them.
void Machine::settle() {
    const auto [clips, factor] = Clipping::decide(state_.squares, *state_.settings.gradient.max_norm);
    if (clips) state_.progress.note_clipped();
    state_.clipping.settled(clips);
    const float average = state_.average();
    Settle action{{}, clips ? static_cast<float>(static_cast<double>(average) * factor) : average};
    Owed owed{state_.progress.next_record(state_.settings.gradient.loss_scale), 0};
    for (const std::uint32_t block : state_.arrivals) {
        state_.blocks[block].debt = Debt::update;
        ++owed.record.counts[block];
        ++owed.blocks;
        action.blocks.push_back(block);
    }
    if (owed.blocks == 0) return write_record();
    state_.owed = std::move(owed);
    actions_.emplace_back(std::move(action));
    finish(kCommitted);
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
