// Rows of the step machine's table test: an order of events, and the actions of each.
#pragma once

#include <string>
#include <vector>

#include "step_histories.h"

namespace luwu::test {

// A line of `events` is an event, and after an arrow its actions: `push 0 a -> update a`. An exclamation mark: the
// machine throws std::logic_error, for an executor cannot say that.
struct StepRow {
    const char* name;
    StepSetup setup;
    const char* events;
};

[[nodiscard]] StepSetup with_frozen(StepSetup setup, std::uint32_t block);
// A run that goes on after 9 steps of 12 attempts, 3 of which were rolled back.
[[nodiscard]] StepSetup resumed(StepSetup setup);

extern const std::vector<StepRow> kPlainRows;        // without clipping
extern const std::vector<StepRow> kDeferredRows;     // clipping, and the updates follow the answer
extern const std::vector<StepRow> kSpeculatingRows;  // clipping, and the updates come before the norm is known
extern const std::vector<StepRow> kCommitPointRows;  // not every step is on the disk
extern const std::vector<StepRow> kTailRows;         // a step is answered before it is on the disk
extern const std::vector<StepRow> kSeveralRows;      // one server of several
extern const std::vector<StepRow> kStreamRows;       // one stream for all workers
extern const std::vector<StepRow> kRefusedRows;
extern const std::vector<StepRow> kMemberRows;  // workers join, leave and are replaced
extern const std::vector<StepRow> kLostRows;    // workers are lost, and others join at their places
extern const std::vector<StepRow> kFailedRows;
extern const std::vector<StepRow> kImpossibleRows;

// The events of every row, for orders that no row has.
struct StepOrder {
    std::string name;
    StepSetup setup;
    std::vector<StepEvent> events;
};
[[nodiscard]] std::vector<StepOrder> row_orders();

// Runs all rows, each on a machine of its own and then beside the reference. Returns a text for each line that is
// wrong.
[[nodiscard]] std::vector<std::string> check_rows(StepCoverage& coverage);

}  // namespace luwu::test
