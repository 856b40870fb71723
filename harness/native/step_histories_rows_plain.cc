// Rows of steps that are not clipped: one server, one of several, and one stream for all workers.
#include "step_histories_rows.h"

namespace luwu::test {

namespace {

StepSetup server(std::uint32_t workers, std::uint32_t blocks) { return step_setup(workers, blocks, false, true); }
StepSetup stream(std::uint32_t workers, std::uint32_t blocks) { return step_setup(workers, blocks, true); }

}  // namespace

StepSetup with_frozen(StepSetup setup, std::uint32_t block) {
    setup.rules.blocks.at(block).trainable = false;
    return setup;
}

StepSetup resumed(StepSetup setup) {
    setup.standing.step = 9;
    setup.standing.attempts = 12;
    setup.standing.rolled_back = 3;
    setup.standing.counts.assign(setup.rules.blocks.size(), 9);
    setup.standing.loss_scale = store::LossScale{4, 2};
    return setup;
}

const std::vector<StepRow> kPlainRows{
    {"a step of one worker is committed, and the next one begins", step_setup(1, 2), R"(
            begin 0 plain -> pass 0
            pull 0 a
            pull 0 b
            push 0 b -> update b
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed
            caught_up b
            written b -> record 1/1/0 11
            recorded -> end committed ba
            begin 0 other -> pass 0
            push 0 a -> update a
            push 0 b -> update b
            caught_up b
            written b
            caught_up a
            written a
            vote 0 -> finish_owed; record 2/2/0 22
            recorded -> end committed ab)"},
    {"a block is updated when the last worker has pushed it, the step ends with the last vote", step_setup(2, 1),
     R"(
            begin 1 plain -> pass 1
            push 1 a
            vote 1
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"a vote comes before the last pushes, and counts with them", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 of 2
            push 1 a
            push 1 b
            vote 1 of 2
            push 0 b -> update b
            caught_up b
            written b
            push 0 a -> update a; finish_owed
            caught_up a
            written a -> record 1/1/0 11
            recorded -> end committed ba)"},
    {"a vote to roll back comes before its last push, and voids the step with that", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 1 b
            vote 0 back of 1
            push 1 a
            push 0 b -> update b; give_back a
            vote 1 -> give_back a; finish_owed
            caught_up b
            written b -> take_back b
            taken_back -> end rolled_back b)"},
    {"a worker gives the step up first: what others push is given back", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            vote 0 back -> give_back a
            push 1 a -> give_back a
            push 1 b -> give_back b
            vote 1 -> give_back a; finish_owed; take_back -
            taken_back -> end rolled_back -
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 0 b
            push 1 a -> update a
            push 1 b -> update b
            caught_up a
            written a
            caught_up b
            written b
            vote 0
            vote 1 -> finish_owed; record 1/2/1 11
            recorded -> end committed ab)"},
    {"a worker gives the step up last: updates under way end first, and are taken back", step_setup(1, 2), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            push 0 b -> update b
            caught_up b
            written b
            vote 0 back -> finish_owed
            caught_up a
            written a -> take_back ab
            taken_back -> end rolled_back ab)"},
    {"both workers give the step up", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            vote 0 back -> give_back a
            vote 1 back -> give_back a; finish_owed; take_back -
            taken_back -> end rolled_back -)"},
    {"a gradient that is not finite voids the step, nobody having asked for it", step_setup(2, 3), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            spoiled
            push 0 b
            push 1 b -> give_back b
            push 0 c
            vote 0
            vote 1 -> give_back c; finish_owed
            caught_up a
            written a -> take_back a
            taken_back -> end not_finite ab)"},
    {"a gradient that is not finite, and a worker that gives up: it is rolled back on request", step_setup(1, 1),
     R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            spoiled
            caught_up a
            written a
            vote 0 back -> finish_owed; take_back a
            taken_back -> end rolled_back a)"},
    {"the last gradient turns out not to be finite after the last vote", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            spoiled
            caught_up a
            written a -> take_back a
            taken_back -> end not_finite a)"},
    {"after a crash counts go on from the last commit, and go back to it", resumed(step_setup(1, 1)), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 back -> finish_owed; take_back a
            taken_back -> end rolled_back a
            begin 0 scaled -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 10/14/4 10 scale 8
            recorded -> end committed a)"},
    {"a frozen block need not be pushed", with_frozen(step_setup(1, 2), 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 10
            recorded -> end committed a)"},
    {"the loss scale is that of the committed step", step_setup(1, 1), R"(
            begin 0 scaled -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1 scale 8
            recorded -> end committed a)"},
};

const std::vector<StepRow> kSeveralRows{
    {"a prepared step is committed, and other decisions change nothing", server(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            decide no -1
            vote 0
            vote 1 -> finish_owed
            caught_up a
            written a -> answer prepared
            decide yes -1 -> record 1/1/0 1
            decide no -1
            recorded -> end committed a
            decide no -1)"},
    {"a prepared step is rolled back", server(1, 2), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            push 0 b -> update b
            caught_up a
            written a
            caught_up b
            written b
            vote 0 -> finish_owed; answer prepared
            decide no -1 -> take_back ab
            decide yes -1
            taken_back -> end rolled_back ab)"},
    {"a step that a worker gives up waits for the last word, too", server(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 back -> finish_owed; answer rolled_back
            decide yes -1 -> take_back a
            taken_back -> end rolled_back a)"},
    {"with clipping, the squares of all servers decide: it is clipped", server(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; answer prepared 0.25
            decide yes 4 -> settle a 0.499999762; end committed 4 a
            caught_up a
            written a -> record 1/1/0 1
            recorded)"},
    {"with clipping, squares that are not finite roll it back", server(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; answer prepared 0.25
            decide yes inf -> take_back -
            taken_back -> end rolled_back a)"},
    {"without clipping, squares decide nothing", server(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; answer prepared
            decide yes inf -> record 1/1/0 1
            recorded -> end committed inf a)"},
    {"it never speculates, and is prepared when the step before is on the disk", server(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0.25
            vote 0 -> finish_owed; answer prepared 0.25
            decide yes 0.25 -> settle a 1; end committed 0.25 a
            begin 0 limit -> pass 0
            push 0 a -> hurry a
            caught_up a -> keep a
            vote 0 -> finish_owed
            written a -> record 1/1/0 1
            kept a 0.5
            recorded -> answer prepared 0.5
            decide no -1 -> take_back -
            taken_back -> end rolled_back a)"},
    {"a server that has no trainable block owes nothing but the record", with_frozen(server(1, 1), 0), R"(
            begin 0 limit -> plan; pass 0
            vote 0 -> finish_owed; answer prepared 0
            decide yes 4 -> settle - 0.499999762; end committed 4 -; record 1/1/0 0
            recorded)"},
    {"a gradient that is not finite waits for the last word, too", server(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            spoiled
            vote 0 -> finish_owed
            caught_up a
            written a -> answer not_finite
            decide no -1 -> take_back a
            taken_back -> end rolled_back a)"},
};

const std::vector<StepRow> kStreamRows{
    {"the sums of all workers come as one stream", stream(2, 2), R"(
            begin 1 plain -> pass 0
            begin 0 plain
            pull 0 a
            push 0 b -> update b
            push 0 a -> update a
            caught_up a
            written a
            caught_up b
            written b
            vote 0 of 2
            vote 1 of 2 -> finish_owed; record 1/1/0 11
            recorded -> end committed ba)"},
    {"all votes come before the last sum", stream(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            vote 0 of 2
            vote 1 of 2
            push 0 a -> update a
            push 0 b -> update b; finish_owed
            caught_up a
            written a
            caught_up b
            written b -> record 1/1/0 11
            recorded -> end committed ab)"},
    {"votes count from the vote before", stream(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            begin 0 plain -> pass 0
            vote 0 of 2
            push 0 a -> update a; finish_owed
            caught_up a
            written a -> record 2/2/0 2
            recorded -> end committed a)"},
    {"a step that is given up waits for its epoch alone", stream(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            vote 0 back of 1 -> epoch
            push 0 b -> give_back b
            caught_up a
            written a
            vote 1 of 2
            epoch_begun -> finish_owed; take_back a
            taken_back -> end rolled_back a)"},
    {"the epoch begins before the other votes come", stream(2, 1), R"(
            begin 0 plain -> pass 0
            vote 0 back of 0 -> epoch
            epoch_begun
            begin 1 plain
            vote 1 back of 5 -> finish_owed; take_back -
            taken_back -> end rolled_back -)"},
    {"the place of a worker that voted is taken: its pushes count from zero", stream(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            vote 1 of 1
            join 1
            caught_up a
            written a
            vote 0 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 2
            vote 1 of 1 -> finish_owed; record 2/2/0 2
            recorded -> end committed a)"},
    {"one of several servers with one stream", step_setup(2, 1, true, true), R"(
            begin 0 limit -> plan; pass 0
            begin 1 limit
            push 0 a -> keep a
            vote 1 of 1
            vote 0 of 1 -> finish_owed
            kept a 4 -> answer prepared 4
            decide yes 4 -> settle a 0.249999881; end committed 4 a
            caught_up a
            written a -> record 1/1/0 1
            recorded)"},
};

}  // namespace luwu::test
