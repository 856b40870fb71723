// The actions that the step machine returns: what its executor is to do, in this order.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "step/ending.h"
#include "store/error.h"
#include "store/records.h"

namespace luwu::step {

// A stream of pulls and pushes starts its pass from the front: its worker, or with one stream for all the first of
// them, began a step.
struct BeginPass {
    std::uint32_t stream = 0;
    bool operator==(const BeginPass&) const = default;
};
// The run's first step clips: divide the memory between states and kept gradients.
struct PlanKept {
    bool operator==(const PlanKept&) const = default;
};
// Answer the pushes of a block: nobody needs its gradients.
struct GiveBack {
    std::uint32_t block = 0;
    bool operator==(const GiveBack&) const = default;
};
// Keep the sum of a block's gradients. Ends with the event kept().
struct Keep {
    std::uint32_t block = 0;
    bool operator==(const Keep&) const = default;
};
// Update a block and write its records. Ends with the event written(). With `keeps`, each gradient is kept first, which
// ends with the event kept().
struct Update {
    std::uint32_t block = 0;
    bool keeps = false;
    bool operator==(const Update&) const = default;
};
// Make the owed update of a block the next one: its gradient of this step waits for it.
struct HurryOwed {
    std::uint32_t block = 0;
    bool operator==(const HurryOwed&) const = default;
};
// Make the owed updates now, at any price: nobody pulls any more.
struct FinishOwed {
    bool operator==(const FinishOwed&) const = default;
};
// Update these blocks from their kept gradients, times `scale`, in any order, but only after EndStep, which comes next.
// Each ends with the events caught_up() and written(). Without `writes` records may stay in memory: the step is no
// commit point. Where commit points follow, written() comes when nothing can change a record any more.
struct Settle {
    std::vector<std::uint32_t> blocks;
    float scale = 1.0F;
    bool writes = true;
    bool operator==(const Settle&) const = default;
};
// Write the records of these blocks that are in memory alone: no update follows. Each ends with the event written().
struct Flush {
    std::vector<std::uint32_t> blocks;
    bool operator==(const Flush&) const = default;
};
// Every block's update of a commit point is in memory, and its records are being written while later steps are made.
// Ends with the event point_written(), once all are on the disk.
struct FollowPoint {
    bool operator==(const FollowPoint&) const = default;
};
// Make memory forget the versions of these blocks that are not committed, once nobody looks at them. Ends with the
// event taken_back().
struct TakeBack {
    std::vector<std::uint32_t> blocks;
    bool operator==(const TakeBack&) const = default;
};
// Write a commit record. Ends with the event recorded().
struct WriteRecord {
    store::CommitRecord record;
    bool operator==(const WriteRecord&) const = default;
};
// With one stream for all: drop what is under way from the workers, who may never send the rest. Ends with the event
// epoch_begun().
struct BeginEpoch {
    bool operator==(const BeginEpoch&) const = default;
};
// Tell all who voted that the step is prepared.
struct Answer {
    Ending ending;
    bool operator==(const Answer&) const = default;
};
// The attempt is over: forget its gradients, tell all who voted or decided how it ended, and only then let what comes
// next begin. `arrivals`: its blocks, in the order in which their last gradients came.
struct EndStep {
    Ending ending;
    std::vector<std::uint32_t> arrivals;
    bool operator==(const EndStep&) const = default;
};
// Tell the caller of this event alone that it is refused; the run goes on.
struct Refuse {
    Error error;
    bool operator==(const Refuse& other) const { return error.kind() == other.error.kind() && text() == other.text(); }
    [[nodiscard]] std::string text() const { return error.what(); }
};
// Tell everybody that the run has failed, and give up what is not owed.
struct Fail {
    Error error;
    bool operator==(const Fail& other) const { return error.kind() == other.error.kind() && text() == other.text(); }
    [[nodiscard]] std::string text() const { return error.what(); }
};

using Action = std::variant<BeginPass, PlanKept, GiveBack, Keep, Update, HurryOwed, FinishOwed, Settle, Flush,
                            FollowPoint, TakeBack, WriteRecord, BeginEpoch, Answer, EndStep, Refuse, Fail>;
using Actions = std::vector<Action>;

}  // namespace luwu::step
