// Rows of runs in which not every step is on the disk: steps in memory, commit points and flushes.
#include "step_histories_rows.h"

namespace luwu::test {

const std::vector<StepRow> kCommitPointRows{
    {"only every second step has a record; gradients are kept without a limit, too",
     with_commit_points(step_setup(1, 2), 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 b -> keep b
            push 0 a -> keep a
            kept a 1
            kept b 3
            vote 0 -> finish_owed; settle ba 1 in memory; end committed ba
            caught_up b
            written b
            caught_up a
            written a
            begin 0 plain -> pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 3
            vote 0 -> finish_owed; settle ab 1; end committed ab
            caught_up a
            written a
            caught_up b
            written b -> record 2/2/0 22
            recorded)"},
    {"the next step is not decided before memory has the one before it", with_commit_points(step_setup(1, 1), 0), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a
            begin 0 plain -> pass 0
            push 0 a -> hurry a
            vote 0 -> finish_owed
            caught_up a -> keep a
            written a
            kept a 1 -> settle a 1 in memory; end committed a)"},
    {"a step that is not finite costs nothing", with_commit_points(step_setup(1, 1), 3), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            spoiled
            kept a nan
            vote 0 -> finish_owed; take_back -
            taken_back -> end not_finite a)"},
    {"an unclipped step never speculates", with_commit_points(step_setup(1, 1), 2), R"(
            begin 0 high -> plan; pass 0
            push 0 a -> keep a
            kept a 4
            vote 0 -> finish_owed; settle a 1 in memory; end committed 4 a
            caught_up a
            written a
            begin 0 high -> pass 0
            push 0 a -> keep a)"},
    {"a snapshot's step is a commit point", with_commit_points(step_setup(1, 1), 0, 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1; end committed a
            caught_up a
            written a -> record 1/1/0 1
            recorded)"},
    {"when it is time, the next step is a commit point, and the one after it is not",
     with_commit_points(step_setup(1, 1), 0), R"(
            commit_soon
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1; end committed a
            commit_soon
            caught_up a
            written a -> record 1/1/0 1
            recorded
            begin 0 plain -> pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a)"},
    {"a flush writes the last step that was answered, and the next one waits for it",
     with_commit_points(step_setup(1, 2), 0), R"(
            make_durable
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed; settle ab 1 in memory; end committed ab
            caught_up a
            written a
            begin 0 plain -> pass 0
            push 0 a -> keep a
            kept a 1
            make_durable
            caught_up b
            written b -> flush ab
            push 0 b -> keep b
            vote 0 -> finish_owed
            kept b 1
            written b
            written a -> record 1/1/0 11
            recorded -> settle ab 1 in memory; end committed ab)"},
    {"a run that has failed is flushed", with_commit_points(step_setup(1, 1), 0), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a
            fail -> fail the server was closed
            make_durable
            caught_up a
            written a -> flush a
            written a -> record 1/1/0 1
            recorded
            make_durable)"},
    {"after an error of the store nothing is flushed", with_commit_points(step_setup(1, 1), 0), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a
            caught_up a
            written a
            break_down -> fail the disk is at fault
            make_durable)"},
    {"a flush after an attempt that was rolled back has the counts of the step before it",
     with_commit_points(step_setup(1, 1), 0), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a
            caught_up a
            written a
            begin 0 plain -> pass 0
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            make_durable -> flush a
            written a -> record 1/1/0 1
            recorded)"},
    {"a commit point that follows is written while the next steps are made; the next point waits for it",
     with_points_that_follow(with_commit_points(step_setup(1, 2), 2)), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed; settle ab 1 in memory; end committed ab
            caught_up a
            written a
            caught_up b
            written b
            begin 0 plain -> pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed; settle ab 1; end committed ab
            caught_up a
            written a
            caught_up b
            written b -> follow
            begin 0 plain -> pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed; settle ab 1 in memory; end committed ab
            caught_up a
            written a
            caught_up b
            written b
            begin 0 plain -> pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed
            point_written -> record 2/2/0 22
            recorded -> settle ab 1; end committed ab)"},
    {"a flush waits for the commit point that follows, and writes what came after it",
     with_points_that_follow(with_commit_points(step_setup(1, 1), 2)), R"(
            commit_soon
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1; end committed a
            caught_up a
            written a -> follow
            commit_soon
            begin 0 plain -> pass 0
            make_durable
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            point_written -> record 1/1/0 1
            recorded
            make_durable)"},
    {"a run that fails still writes the commit point that follows, and then the rest",
     with_points_that_follow(with_commit_points(step_setup(1, 1), 0)), R"(
            commit_soon
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1; end committed a
            caught_up a
            written a -> follow
            begin 0 plain -> pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1 in memory; end committed a
            caught_up a
            written a
            fail -> fail the server was closed
            make_durable
            point_written -> record 1/1/0 1
            recorded -> flush a
            written a -> record 2/2/0 2
            recorded)"},
    {"after an error of the store a commit point that follows has no record",
     with_points_that_follow(with_commit_points(step_setup(1, 1), 0)), R"(
            commit_soon
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed; settle a 1; end committed a
            caught_up a
            written a -> follow
            break_down -> fail the disk is at fault
            point_written)"},
    {"one server of several: squares matter to nobody without a limit",
     with_commit_points(step_setup(1, 1, false, true), 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> keep a
            kept a 4
            vote 0 -> finish_owed; answer prepared
            decide yes -1 -> settle a 1 in memory; end committed a)"},
};

}  // namespace luwu::test
