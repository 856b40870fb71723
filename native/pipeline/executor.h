// Turns the step machine's actions into work of the pipeline's parts, and owns them. Actions are carried out one after
// the other: what an action causes comes after the actions before.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "pipeline/gradients.h"
#include "pipeline/keeping.h"
#include "pipeline/optimizers.h"
#include "pipeline/owed_updates.h"
#include "pipeline/parameters.h"
#include "pipeline/point_writes.h"
#include "pipeline/shared.h"
#include "pipeline/states.h"
#include "pipeline/updates.h"
#include "pipeline/writing.h"

namespace luwu::pipeline {

class Executor {
  public:
    Executor(store::ChunkStore& store, PipelineSettings settings);
    ~Executor();  // finishes transfers under way
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    Shared shared;
    Gradients gradients;
    Keeping keeping;
    OwedUpdates owed;
    Updates updates;
    PointWrites points;
    Optimizers optimizers;
    // Last, so that their threads end before what they use.
    Parameters parameters;
    States states;
    Writing writing;

    // Carries actions out. An exception of one of them breaks the run down, and is its failure.
    void tell(step::Actions actions);
    void fail(const Error& error) { tell(shared.machine.fail(error)); }
    void break_down(const Error& error);  // the store is at fault: nothing more is written
    // Takes a step's updates back, if they are to be taken back and nobody looks at them any more.
    void try_take_back();
    // The step's end, or its preparation, is answered with it; and a failure.
    void await_answer(Reply reply) { replies_.push_back(std::move(reply)); }

    // tell() alone calls these:
    void operator()(const step::BeginPass& action) { shared.pass.begin_step(action.stream); }
    void operator()(const step::PlanKept&) { keeping.plan(); }
    void operator()(const step::GiveBack& action) { gradients.give_back(action.block); }
    void operator()(const step::Keep& action) { keeping.start(action.block); }
    void operator()(const step::Update& action) { updates.begin(action); }
    void operator()(const step::HurryOwed& action) { owed.hurry(action.block); }
    void operator()(const step::FinishOwed&) { owed.start_due(); }
    void operator()(const step::Settle& action) { owed.settle(action); }
    void operator()(const step::Flush& action) { updates.flush(action.blocks); }
    void operator()(const step::FollowPoint&) { points.follow(); }
    void operator()(const step::TakeBack& action);
    void operator()(const step::WriteRecord& action) { writing.commit(action.record); }
    void operator()(const step::BeginEpoch&) { shared.settings.on_given_up(); }
    void operator()(const step::Answer& action) { answer(action.ending); }
    void operator()(const step::EndStep& action);
    void operator()(const step::Refuse&) {}  // whoever asked tells its caller
    void operator()(const step::Fail& action);

  private:
    void carry_out();
    void answer(const step::Ending& ending);

    std::deque<step::Action> actions_;
    bool acting_ = false;
    std::optional<std::vector<std::uint32_t>> to_take_back_;  // blocks
    std::uint64_t takes_back_since_ns_ = 0;                   // trace::Recorder::begin
    std::vector<Reply> replies_;
};

}  // namespace luwu::pipeline
