// The types that a pipeline's callers use: its settings, its replies and its stats.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "pipeline/room.h"
#include "pipeline/tracing.h"
#include "schedule/node_plan.h"
#include "schedule/residency.h"
#include "step/ending.h"
#include "step/settings.h"
#include "store/error.h"
#include "store/io_engine.h"

namespace luwu::pipeline {

class Replica;

using step::CommitPoints;
using step::GradientSettings;
using step::GroupSettings;
using step::kCommitted;
using step::kNoSquares;
using step::kNotFinite;
using step::kPrepared;
using step::kRolledBack;
using step::StepEnd;

struct PipelineSettings {
    schedule::ResidencyPlan plan;
    schedule::NodePlan nodes;
    std::byte* window = nullptr;  // plan.window_bytes, page aligned
    std::uint32_t workers = 1;
    bool one_stream = false;  // stream 0 has the pulls of all workers, and pushes the sum of their gradients
    std::optional<kernels::Dtype> gradient_dtype;  // of all blocks; default: each block's own
    std::optional<float> gradient_scale;           // of the sum over workers, but for loss scale; default: 1 / workers
    std::uint32_t trims = 0;  // with a stream for each worker: values that are left out at each end, see trimmed_mean()
    std::uint32_t optimizer_threads = 1;
    std::uint32_t io_depth = 16;
    bool prepares = false;  // a step that nobody rolled back waits for decide(): other servers have the other blocks
    std::shared_ptr<Tracing> tracing = std::make_shared<Tracing>();
    std::function<std::unique_ptr<store::IoEngine>(std::uint32_t)> make_engine = store::make_io_engine;
    std::function<void(const Error&)> on_failure = [](const Error&) {};
    // With one stream: a worker gave the step up, and packets under way from the others must be dropped. Called with
    // the lock held; must return quickly. Pipeline::epoch_begun() answers.
    std::function<void()> on_given_up = [] {};
    std::chrono::nanoseconds disk_full_wait{0};  // the longest time that a step waits for room on a disk
    CommitPoints commit_points;
    std::optional<std::chrono::nanoseconds> commit_after;  // time since the last commit point, after which the next
                                                           // step is one, too
    // The first record since the last commit is about to be written, of this step. Called with the lock held; must
    // return quickly.
    std::function<void(std::uint64_t)> on_writing = [](std::uint64_t) {};
    // A commit has been made and answered: called in the thread that makes the next one, before it does.
    std::function<void()> on_commit = [] {};

    std::shared_ptr<Replica> replica;  // a copy of the store on another machine; null: there is none

    [[nodiscard]] std::uint32_t streams() const { return one_stream ? 1 : workers; }
};

struct Outcome {
    bool ok = true;               // false: the pipeline failed; failure() tells why
    std::int64_t value = 0;       // pull: offset in the window; vote and decide: a StepEnd
    double squares = kNoSquares;  // vote and decide: step::Ending
};
[[nodiscard]] inline Outcome outcome_of(const step::Ending& ending) { return {true, ending.end, ending.squares}; }
using Reply = std::function<void(Outcome)>;

// The failure of a run whose server is closed.
[[nodiscard]] inline Error server_closed() { return {ErrorKind::server, "the server was closed"}; }

struct PipelineStats {
    std::uint64_t bytes_pulled = 0;  // to all workers
    std::uint64_t bytes_pushed = 0;  // by all workers
    std::uint64_t bytes_read = 0;    // from the store
    std::uint64_t bytes_written = 0;
    std::uint64_t elements_updated = 0;
    std::uint64_t update_nanoseconds = 0;  // of step 5's threads together
    std::uint64_t pulls_waited = 0;        // pulls that found their block absent or still being read
    std::uint64_t pulls = 0;
    std::uint64_t states_waited = 0;  // chunks whose gradient was there before their states
    std::uint64_t chunks_updated = 0;
    std::uint64_t read_nanoseconds = 0;  // in which reads of parameters, and of states, were under way, added up
    std::uint64_t write_nanoseconds = 0;
    std::uint64_t step = 0;
    std::uint64_t attempts = 0;
    std::uint64_t rolled_back = 0;
    std::uint64_t voided = 0;                    // attempts that a lost worker made void; they do not count
    std::uint64_t unwritten = 0;                 // steps that were answered and are not on the disk yet
    double since_commit_seconds = 0;             // since the last commit point, or the start
    std::uint64_t clipped = 0;                   // committed steps whose gradient was clipped
    std::uint64_t redone = 0;                    // of them: those that had been updated before their norm was known
    std::optional<store::LossScale> loss_scale;  // of the last committed step
    std::optional<RoomWait> waits_for_room;      // a disk is full: the run is paused
};

}  // namespace luwu::pipeline
