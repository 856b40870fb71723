// The whole state of the step machine, and the questions that an executor asks it. Only the machine changes it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "step/block.h"
#include "step/clipping.h"
#include "step/members.h"
#include "step/progress.h"
#include "step/settings.h"
#include "step/stage.h"
#include "store/error.h"

namespace luwu::step {

struct BlockRules {
    std::string name;
    bool trainable = true;
    std::uint32_t chunks = 1;
};

// Settings that do not change during a run.
struct Rules {
    std::vector<BlockRules> blocks;
    std::uint32_t workers = 1;
    bool one_stream = false;  // the gradients of all workers come as one sum; else each worker pushes its own
    bool prepares = false;    // a step that nobody rolled back waits for decide(): other servers have the other blocks
    CommitPoints commit_points;
    // Later steps are made while a commit point is still being written: nothing else is written meanwhile, and what is
    // to be written is not changed. Gradients are kept then.
    bool points_follow = false;
    Tail tail;
    float mean = 1.0F;  // what the sum over workers is multiplied by, but for the loss scale

    [[nodiscard]] std::uint32_t streams() const { return one_stream ? 1 : workers; }
};

// A step that was answered, and whose updates are not all in memory yet, or of a commit point not all on the disk.
struct Owed {
    std::optional<store::CommitRecord> record;  // of a commit point
    std::uint32_t blocks = 0;                   // that owe something; none: the record is being written
    bool follows = false;                       // its writes may take longer than it is owed
};

// A commit point that all blocks have their update of, in memory, and whose writes go on while later steps are made.
struct Point {
    store::CommitRecord record;
    bool recording = false;  // all else is on the disk
};

struct State {
    State(Rules rules_, const store::CommitRecord& standing);

    Rules rules;
    Members members;
    Progress progress;
    Clipping clipping;
    std::vector<Block> blocks;
    Stage stage = Stage::collecting;
    Verdict verdict = Verdict::good;
    StepSettings settings;                // of this step
    double squares = kNoSquares;          // of this step, once known
    std::uint32_t busy_blocks = 0;        // that the end of this step waits for
    std::uint64_t stream_pushes = 0;      // in this step; with one stream for all
    bool awaits_epoch = false;            // what is under way from the workers of a step that was given up
    std::vector<std::uint32_t> arrivals;  // blocks of this step, in the order in which their last gradient came
    std::optional<Owed> owed;
    std::optional<Point> point;
    bool point_is_due = false;  // the next step that is committed is a commit point, whatever its number
    bool flush_is_due = false;  // the last step that was answered is to be on the disk, and another may never come
    Ending last_end;
    std::optional<Error> failure;
    std::optional<Error> broken;  // the error of the store, after which nothing is written

    [[nodiscard]] bool failed() const { return failure.has_value(); }
    [[nodiscard]] bool is_void() const { return verdict != Verdict::good; }  // nothing of this step stays
    // The end of a step of which nothing stays.
    [[nodiscard]] Ending ending_of_void() const {
        if (verdict == Verdict::lost) return {kVoid, kNoSquares};
        if (abandoned()) return {kRolledBack, kNoSquares};
        return {kNotFinite, clipping.limits() ? std::numeric_limits<double>::quiet_NaN() : kNoSquares};
    }
    // True if further pushes of this step are discarded.
    [[nodiscard]] bool abandoned() const { return verdict >= Verdict::given_up; }
    // Every worker that this step waits for has voted: a lost one will not, and a void step does not need it.
    [[nodiscard]] bool all_voted() const { return members.all_voted(verdict == Verdict::lost); }
    // The step may miss something of this worker. With one stream nobody sees what a worker has sent, and the packets
    // of the others would not be completed by those of another worker at its place: only a step that has all sums goes
    // on.
    [[nodiscard]] bool may_owe(std::uint32_t worker) const {
        if (rules.one_stream) return stage == Stage::collecting && members.anyone_in_step();
        return members.at(worker).standing == Standing::begun || members.at(worker).standing == Standing::voting;
    }
    // A worker may take this place: the step that the one before it has voted on is over, and so is a void one.
    [[nodiscard]] bool may_join(std::uint32_t worker) const {
        return members.at(worker).standing != Standing::voted && verdict != Verdict::lost;
    }
    // The block's update will not be needed.
    [[nodiscard]] bool is_void(std::uint32_t block) const { return !blocks[block].owes() && is_void(); }
    [[nodiscard]] bool given_up(std::uint32_t block) const { return broken || (failure && !blocks[block].owes()); }
    // A worker is in the step, and its pulls and pushes may come.
    [[nodiscard]] bool working() const {
        return stage == Stage::collecting && (rules.one_stream ? members.anyone_in_step() : members.anyone_working());
    }
    [[nodiscard]] bool nobody_pulls() const { return failed() || !working(); }
    // Gradients of this run are kept: all, or those that updates are behind with.
    [[nodiscard]] bool may_keep() const { return clipping.keeps_gradients() || rules.tail.follows(); }
    // Blocks are updated as their gradients come, not once the step is decided.
    [[nodiscard]] bool updates_at_once() const { return !clipping.keeps_gradients() || clipping.speculates(); }
    // The next step's blocks are expected to be updated as their gradients come.
    [[nodiscard]] bool next_updates_at_once() const {
        return !clipping.keeps_gradients() || clipping.speculates_next();
    }
    // A block waits for the record of the step before.
    [[nodiscard]] bool any_waits_to_update() const {
        return chunks_where([](BlockStage stage) { return stage == BlockStage::waiting_to_update; }) > 0;
    }
    // The step after the last one that was answered is a commit point, and the one before it is still being written.
    [[nodiscard]] bool waits_for_point() const { return point && rules.commit_points.has(progress.step() + 1); }
    // The step whose records are being written, or come next.
    [[nodiscard]] std::uint64_t step_to_write() const {
        return point ? point->record.step : progress.step() + (owed ? 0 : 1);
    }
    // The end of this step waits for the block.
    [[nodiscard]] bool holds_up(BlockStage stage) const {
        return is_undecided(stage) || (!rules.tail.follows() && is_being_written(stage));
    }
    // A block whose gradients have come is kept now and updated when the step is decided: updates are behind.
    [[nodiscard]] bool follows_later(std::uint32_t block) const {
        if (!rules.tail.follows() || (!owed && chunks_where(is_being_updated) < rules.tail.at_once)) return false;
        return clipping.keeps_gradients() || kept_chunks() + rules.blocks[block].chunks <= rules.tail.room;
    }
    template <class Predicate>
    [[nodiscard]] std::uint32_t chunks_where(Predicate holds) const {
        std::uint32_t chunks = 0;
        for (std::uint32_t block = 0; block < blocks.size(); ++block) {
            if (holds(blocks[block].stage)) chunks += rules.blocks[block].chunks;
        }
        return chunks;
    }
    // Chunks whose gradients memory keeps, or has promised to keep.
    [[nodiscard]] std::uint32_t kept_chunks() const {
        std::uint32_t chunks = chunks_where(is_updated_later);
        for (std::uint32_t block = 0; block < blocks.size(); ++block) {
            if (blocks[block].stale()) chunks += rules.blocks[block].chunks;
        }
        return chunks;
    }
    // Factor on the sum over workers.
    [[nodiscard]] float average() const {
        const auto& scale = settings.gradient.loss_scale;
        return scale ? static_cast<float>(static_cast<double>(rules.mean) / scale->scale) : rules.mean;
    }
};

}  // namespace luwu::step
