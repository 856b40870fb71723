#include "step/machine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "step/agreement.h"

namespace luwu::step {

namespace {

// An executor says that it ended what was not begun: an error of its code.
void must(bool possible, const char* what) {
    if (!possible) throw std::logic_error(what);
}

// A worker whose program was interrupted while it waited for the answer to its begin() asks again, in the same words.
// Only a worker with a stream of its own can be seen to have pushed nothing since.
bool begins_again(const State& state, std::uint32_t worker, const StepSettings& settings) {
    if (state.rules.one_stream || state.members.at(worker).standing != Standing::begun) return false;
    const bool pushed = std::any_of(state.blocks.begin(), state.blocks.end(),
                                    [worker](const Block& block) { return block.came[worker]; });
    return !pushed && state.settings == settings;
}

}  // namespace

void Machine::to(std::uint32_t block, BlockEvent event) {
    BlockStage& stage = state_.blocks[block].stage;
    const auto next = next_block_stage(stage, event);
    if (!next) {
        throw std::logic_error("block " + std::to_string(block) + " in stage " +
                               std::to_string(static_cast<int>(stage)) + " met event " +
                               std::to_string(static_cast<int>(event)));
    }
    state_.busy_blocks += state_.holds_up(*next) ? 1U : 0U;
    state_.busy_blocks -= state_.holds_up(stage) ? 1U : 0U;
    stage = *next;
}

void Machine::refuse(const std::string& message) {
    state_.failure = Error(ErrorKind::order, message);
    actions_.emplace_back(Fail{*state_.failure});
}

// ---- what workers ask

Actions Machine::begin(std::uint32_t worker, const StepSettings& settings) {
    if (state_.failed()) return take();
    if (const auto left = state_.members.left()) return fail(left_too_early(*left, state_.progress.step()));
    if (state_.stage == Stage::prepared) {
        refuse(name_of(worker) + " began a step before the one before it was decided on");
        return take();
    }
    if (begins_again(state_, worker, settings)) {
        actions_.emplace_back(BeginPass{worker});
        return take();
    }
    if (state_.members.at(worker).standing != Standing::resting) {
        refuse(name_of(worker) + " began a step twice");
        return take();
    }
    const bool first = !state_.members.anyone_in_step();
    if (first) {
        const bool chosen = state_.clipping.chosen();
        if (const auto error = state_.clipping.begin_step(settings.gradient.max_norm.has_value())) return fail(*error);
        if (!chosen && state_.may_keep()) actions_.emplace_back(PlanKept{});
        state_.settings = settings;
    } else if (state_.settings != settings) {
        refuse(other_settings(worker, state_.progress.step() + 1));
        return take();
    }
    state_.members.begin(worker);
    if (first || !state_.rules.one_stream) actions_.emplace_back(BeginPass{state_.rules.one_stream ? 0 : worker});
    return take();
}

Actions Machine::pull(std::uint32_t stream, std::uint32_t block) {
    if (!state_.failed() && state_.blocks[block].came[stream]) {
        refuse(name_of(stream) + " pulled block '" + state_.rules.blocks[block].name +
               "' again after pushing its gradient in the same step");
    }
    return take();
}

Actions Machine::push(std::uint32_t stream, std::uint32_t block) {
    if (state_.failed()) return take();
    Block& entry = state_.blocks[block];
    const bool one = state_.rules.one_stream;
    const Standing standing = state_.members.at(stream).standing;
    const bool in_step = one ? state_.working() : standing == Standing::begun || standing == Standing::voting;
    if (!in_step || entry.came[stream]) {
        refuse(name_of(stream) + " pushed block '" + state_.rules.blocks[block].name +
               (in_step ? "' twice in one step" : "' before it began a step"));
        return take();
    }
    entry.came[stream] = true;
    if (state_.abandoned()) {
        // Discarded: the worker that gave the step up, or is lost, may never push, and the sum would stay incomplete.
        actions_.emplace_back(GiveBack{block});
    } else if (++entry.arrived == state_.rules.streams()) {
        all_arrived(block);
    }
    if (one) {
        ++state_.stream_pushes;
    } else {
        state_.members.push(stream);
        if (state_.members.vote_is_due(stream)) count_vote(stream);
    }
    try_close();
    return take();
}

void Machine::all_arrived(std::uint32_t block) {
    state_.arrivals.push_back(block);
    if (state_.is_void()) {
        to(block, BlockEvent::give_back);
        actions_.emplace_back(GiveBack{block});
    } else if (state_.updates_at_once() && !state_.follows_later(block)) {
        if (!state_.owed) return update(block);
        to(block, BlockEvent::wait_to_update);
        actions_.emplace_back(HurryOwed{block});
    } else if (state_.blocks[block].stale()) {
        to(block, BlockEvent::wait_to_keep);
        actions_.emplace_back(HurryOwed{block});
    } else {
        to(block, BlockEvent::keep);
        actions_.emplace_back(Keep{block});
    }
}

void Machine::update(std::uint32_t block) {
    const bool keeps = state_.clipping.speculates();
    to(block, keeps ? BlockEvent::speculate : BlockEvent::update);
    actions_.emplace_back(Update{block, keeps});
}

Actions Machine::vote(std::uint32_t worker, bool roll_back, std::optional<std::uint64_t> pushes) {
    if (state_.failed()) {
        state_.members.forget_ending(worker);  // of the step before: this one has none
        return take();
    }
    const Member& member = state_.members.at(worker);
    if (member.waits()) {
        actions_.emplace_back(Refuse{Error(ErrorKind::order, name_of(worker) + " voted twice on one step")});
        return take();
    }
    if (member.standing != Standing::begun || (pushes && *pushes < member.at_last_vote)) {
        refuse(name_of(worker) + " ended a step that it had not begun");
        return take();
    }
    state_.members.vote(worker, roll_back, pushes);
    if (state_.rules.one_stream || state_.members.vote_is_due(worker)) count_vote(worker);
    try_close();
    return take();
}

void Machine::count_vote(std::uint32_t worker) {
    state_.members.count_vote(worker);
    if (state_.members.at(worker).rolls_back) abandon(Verdict::given_up);
}

void Machine::abandon(Verdict verdict) {
    const bool before = state_.abandoned();
    state_.verdict = std::max(state_.verdict, verdict);
    if (before) return;
    return_unfinished();  // their workers may wait for them before they vote
    if (!state_.rules.one_stream) return;
    state_.awaits_epoch = true;
    actions_.emplace_back(BeginEpoch{});
}

void Machine::return_unfinished() {
    for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
        const std::uint32_t arrived = state_.blocks[block].arrived;
        if (arrived > 0 && arrived < state_.rules.streams()) actions_.emplace_back(GiveBack{block});
    }
}

Actions Machine::epoch_begun() {
    must(state_.awaits_epoch, "an epoch began that nobody awaits");
    state_.awaits_epoch = false;
    try_close();
    return take();
}

// The votes of workers with one stream come another way than their sums, which may still be under way.
void Machine::try_close() {
    if (state_.failed() || state_.stage != Stage::collecting || !state_.all_voted()) return;
    const bool given_up = state_.abandoned();
    if (state_.rules.one_stream) {
        if (state_.awaits_epoch) return;
        const auto uneven = given_up ? std::nullopt : uneven_pushes(state_);
        if (uneven) return refuse(*uneven);
        if (!given_up && state_.stream_pushes < state_.members.at(0).in_step) return;
    }
    state_.stage = stage_after(state_.stage, StageEvent::all_voted);
    if (state_.is_void()) {
        return_unfinished();
    } else if (const auto missing = missing_push(state_)) {
        return refuse(*missing);
    }
    actions_.emplace_back(FinishOwed{});
    try_end();
}

Actions Machine::decide(bool commits, double squares) {
    if (state_.failed() || state_.stage != Stage::prepared) return take();
    state_.stage = stage_after(state_.stage, StageEvent::decide);
    state_.squares = squares;
    const bool finite = !state_.clipping.limits() || std::isfinite(squares);
    if (!commits || !finite) state_.verdict = std::max(state_.verdict, Verdict::given_up);
    try_end();
    return take();
}

Actions Machine::annul(std::uint64_t ended) {
    if (state_.failed() || !state_.rules.prepares || ended != state_.progress.ended()) return take();
    if (state_.stage == Stage::collecting) {
        abandon(Verdict::lost);
        try_close();
    } else if (state_.stage == Stage::closing || state_.stage == Stage::prepared) {
        if (state_.stage == Stage::prepared) state_.stage = stage_after(state_.stage, StageEvent::decide);
        state_.verdict = Verdict::lost;
        try_end();
    }
    return take();
}

Actions Machine::join(std::uint32_t worker) {
    state_.members.join(worker);
    return take();
}

Actions Machine::leave(std::uint32_t worker) {
    state_.members.leave(worker);
    if (!state_.members.anyone_in_step()) return take();
    return fail(left_too_early(worker, state_.progress.step()));
}

Actions Machine::lose(std::uint32_t worker) {
    const bool owes = state_.may_owe(worker);
    state_.members.lose(worker);
    if (state_.failed()) return take();
    if (owes) abandon(Verdict::lost);
    fail_if_nobody_decides();
    try_close();
    return take();
}

// ---- what the executor has done

Actions Machine::kept(std::uint32_t block, double squares) {
    if (state_.failed()) return take();
    state_.blocks[block].squares = squares;
    to(block, BlockEvent::kept);
    try_end();
    return take();
}

Actions Machine::spoiled() {
    if (state_.verdict == Verdict::good) state_.verdict = Verdict::not_finite;
    return take();
}

Actions Machine::caught_up(std::uint32_t block) {
    Block& entry = state_.blocks[block];
    if (!entry.stale()) {
        if (state_.failed()) return take();
        to(block, BlockEvent::in_memory);
        state_.progress.updated(block);
        try_end();
        return take();
    }
    entry.debt = Debt::record;
    state_.progress.updated(block);
    if (entry.stage != BlockStage::waiting_to_keep || state_.failed()) return take();
    to(block, BlockEvent::keep);
    actions_.emplace_back(Keep{block});
    return take();
}

Actions Machine::written(std::uint32_t block) {
    if (state_.given_up(block)) return take();
    must(!state_.blocks[block].stale(), "a block was written before memory held it");
    Block& entry = state_.blocks[block];
    if (!entry.owes()) {
        to(block, BlockEvent::written);
        try_end();
        return take();
    }
    entry.debt = Debt::none;
    --state_.owed->blocks;
    try_record();
    return take();
}

Actions Machine::taken_back() {
    if (state_.failed()) return take();
    must(state_.stage == Stage::restoring || state_.stage == Stage::redoing, "nothing was to be taken back");
    for (std::uint32_t block = 0; block < state_.blocks.size(); ++block) {
        must(!is_being_written(state_.blocks[block].stage), "a block was taken back that is still written");
        if (is_updated(state_.blocks[block].stage)) state_.progress.taken_back(block);
    }
    if (state_.stage == Stage::redoing) {
        state_.progress.note_redone();
        settle();
        return take();
    }
    const Ending ending = state_.ending_of_void();
    state_.squares = ending.squares;
    finish(ending.end);
    return take();
}

Actions Machine::recorded() {
    if (state_.point && state_.point->recording) {
        state_.progress.on_disk(state_.point->record);
        state_.point.reset();
        try_flush();
        try_end();
        return take();
    }
    const auto& owed = state_.owed;
    const bool awaited = owed ? owed->record && owed->blocks == 0 : state_.stage == Stage::recording;
    must(awaited, "no record was to be written");
    state_.point_is_due = false;
    state_.progress.on_disk(owed ? *owed->record : state_.progress.next_record({}));
    if (owed) {
        no_more_owed();
    } else {
        finish(kCommitted);
    }
    return take();
}

Actions Machine::point_written() {
    must(state_.point && !state_.point->recording, "no commit point was to be written");
    if (state_.broken) return take();
    state_.point->recording = true;
    actions_.emplace_back(WriteRecord{state_.point->record});
    return take();
}

Actions Machine::commit_soon() {
    if (!state_.point) state_.point_is_due = true;
    return take();
}

Actions Machine::make_durable() {
    state_.flush_is_due = true;
    try_flush();
    return take();
}

// ---- what ends a run

Actions Machine::fail(const Error& error) {
    if (!state_.failed()) {
        state_.failure = error;
        actions_.emplace_back(Fail{error});
    }
    return take();
}

Actions Machine::break_down(const Error& error) {
    state_.broken = error;
    return fail(error);
}

}  // namespace luwu::step
