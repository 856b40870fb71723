// Rows of workers that come and go, of runs that fail, and of what an executor cannot say.
#include "step_histories_rows.h"

namespace luwu::test {

const std::vector<StepRow> kMemberRows{
    {"a worker that leaves between steps is missed by who begins", step_setup(2, 1), R"(
            leave 1
            begin 0 plain -> lost worker 1 left after step 0 and others went on; give every worker the same number of batches)"},
    {"a worker that leaves while another is in a step", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            leave 1 -> lost worker 1 left after step 0 and others went on; give every worker the same number of batches)"},
    {"a worker that leaves the step that it has voted on", step_setup(2, 1), R"(
            begin 1 plain -> pass 1
            push 1 a
            vote 1
            leave 1 -> lost worker 1 left after step 0 and others went on; give every worker the same number of batches)"},
    {"a worker that leaves before a prepared step is decided", step_setup(1, 1, false, true), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; answer prepared
            leave 0 -> lost worker 0 left after step 0 and others went on; give every worker the same number of batches)"},
    {"a worker that leaves before its vote counts matters to nobody, if it is alone", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            vote 0 of 1
            leave 0)"},
    {"places are taken again, the last that left is named first", step_setup(3, 1), R"(
            leave 0
            leave 2
            leave 1
            leave 0
            join 0
            begin 0 plain -> lost worker 1 left after step 0 and others went on; give every worker the same number of batches)"},
    {"all leave, all join, and the run goes on; pushes count from zero", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            caught_up a
            written a
            vote 0 of 1
            vote 1 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            leave 0
            leave 1
            join 1
            join 0
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 of 1
            push 0 a
            push 1 a -> update a
            vote 1 of 1 -> finish_owed
            caught_up a
            written a -> record 2/2/0 2
            recorded -> end committed a)"},
    {"the place of a worker that was in a step is taken: the new one begins it", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            join 1
            vote 1 -> fail worker 1 ended a step that it had not begun)"},
    {"and it pushes, votes and is answered", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            vote 0
            join 1
            begin 1 plain -> pass 1
            push 1 a -> update a
            caught_up a
            written a
            vote 1 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"but what the one before it pushed stays pushed", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 1 a
            join 1
            begin 1 plain -> pass 1
            push 1 a -> fail worker 1 pushed block 'a' twice in one step)"},
    {"a vote that waits for pushes goes with its worker", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 1 of 1
            join 1
            begin 1 plain -> pass 1
            push 1 a
            push 0 a -> update a
            caught_up a
            written a
            vote 0
            vote 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"a begin whose answer was lost is answered again", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 0 plain -> pass 0
            push 0 a
            vote 0
            begin 1 plain -> pass 1
            push 1 a -> update a
            vote 1 -> finish_owed
            caught_up a
            written a -> record 1/1/0 1
            recorded -> end committed a)"},
    {"a vote that counts stays when its place is taken", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 1 a
            vote 1 of 1
            join 1
            begin 1 plain -> fail worker 1 began a step twice)"},
    {"and is answered; then pushes count from zero", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 1 a
            vote 1 of 1
            join 1
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            begin 1 plain -> pass 1
            vote 1 of 1
            begin 0 plain -> pass 0
            push 0 a
            vote 0 of 2
            push 1 a -> update a; finish_owed
            caught_up a
            written a -> record 2/2/0 2
            recorded -> end committed a)"},
    {"alone in a step that its leaver began, a worker brings its own settings", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            leave 0
            join 0
            begin 0 other -> pass 0
            push 0 a -> update a)"},
};

const std::vector<StepRow> kFailedRows{
    {"a run fails while workers push: nothing of its step goes on", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            fail -> fail the server was closed
            fail
            caught_up a
            written a
            push 0 b
            vote 0)"},
    {"it fails while a step closes", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            fail -> fail the server was closed
            caught_up a
            written a)"},
    {"it fails while a step is kept", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            fail -> fail the server was closed
            kept a 1)"},
    {"it fails while a step is prepared", step_setup(1, 1, false, true), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; answer prepared
            fail -> fail the server was closed
            decide yes -1)"},
    {"it fails while a record is written: that still ends its step", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1
            fail -> fail the server was closed
            recorded -> end committed a)"},
    {"it fails while a step is taken back", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 back -> finish_owed; take_back a
            fail -> fail the server was closed
            taken_back)"},
    {"it fails while an epoch is awaited", step_setup(1, 1, true), R"(
            begin 0 plain -> pass 0
            vote 0 back of 0 -> epoch
            fail -> fail the server was closed
            epoch_begun)"},
    {"it fails while a step is updated again", step_setup(1, 1), R"(
            begin 0 high -> plan; pass 0
            push 0 a -> keep a
            kept a 4
            vote 0 -> finish_owed; settle a 1; end committed 4 a
            caught_up a
            written a -> record 1/1/0 1
            recorded
            begin 0 limit -> pass 0
            push 0 a -> update+keep a
            caught_up a
            written a
            kept a 4
            vote 0 -> finish_owed; take_back a
            fail -> fail the server was closed
            taken_back)"},
    {"what is owed is still updated and recorded, what waits for it is not", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 4
            kept b 0
            vote 0 -> finish_owed; settle ab 0.499999762; end committed 4 ab
            begin 0 limit -> pass 0
            push 0 b -> hurry b
            fail -> fail the server was closed
            caught_up b
            written b
            caught_up a
            written a -> record 1/1/0 11
            recorded)"},
    {"speculation that waits for what is owed does not go on", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0
            vote 0 -> finish_owed; settle a 1; end committed 0 a
            begin 0 limit -> pass 0
            push 0 a -> hurry a
            caught_up a
            written a -> record 1/1/0 1
            fail -> fail the server was closed
            recorded)"},
    {"after a break-down not even that goes on", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0
            vote 0 -> finish_owed; settle a 1; end committed 0 a
            caught_up a
            break_down -> fail the disk is at fault
            written a)"},
    {"a run that has failed breaks down silently", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0
            vote 0 -> finish_owed; settle a 1; end committed 0 a
            fail -> fail the server was closed
            caught_up a
            break_down
            written a)"},
    {"a vote after a failure has no ending, not even that of the step before", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            begin 0 plain -> pass 0
            fail -> fail the server was closed
            vote 0)"},
    {"workers come and go after a failure", step_setup(1, 1), R"(
            fail -> fail the server was closed
            leave 0
            join 0
            begin 0 plain)"},
};

const std::vector<StepRow> kImpossibleRows{
    {"a block kept that is not being kept", step_setup(1, 1), "kept a 1 !"},
    {"a block kept twice", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 1
            kept a 1 !)"},
    {"a block written that is not being updated", step_setup(1, 1), "written a !"},
    {"a block written while it is being kept", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            written a !)"},
    {"an owed block written before memory has it", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; settle a 1; end committed 0.25 a
            written a !)"},
    {"a block caught up that owes nothing", step_setup(1, 1), "caught_up a !"},
    {"a block caught up twice", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; settle a 1; end committed 0.25 a
            caught_up a
            caught_up a !)"},
    {"a record that nobody asked for", step_setup(1, 1), "recorded !"},
    {"a record of an owed step before its last block", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; settle a 1; end committed 0.25 a
            recorded !)"},
    {"a record of a step that closes", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            recorded !)"},
    {"nothing to take back", step_setup(1, 1), "taken_back !"},
    {"a step taken back whose record is being written", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1
            taken_back !)"},
    {"an epoch that nobody asked for", step_setup(1, 1, true), "epoch_begun !"},
};

}  // namespace luwu::test
