// Rows of runs in which every step is put on the disk, but answered when it is decided: what updates are behind with
// follows.
#include "step_histories_rows.h"

namespace luwu::test {

namespace {

StepSetup with_chunks(StepSetup setup, std::uint32_t block, std::uint32_t chunks) {
    setup.rules.blocks[block].chunks = chunks;
    return setup;
}

}  // namespace

const std::vector<StepRow> kTailRows{
    {"a step is answered when memory has all updates, and recorded when the disk has", with_tail(step_setup(1, 2), 2),
     R"(
            begin 0 plain -> plan; pass 0
            push 0 b -> update b
            push 0 a -> update a
            caught_up b
            written b
            vote 0 -> finish_owed
            caught_up a -> settle - 1; end committed ba
            begin 0 plain -> pass 0
            written a -> record 1/1/0 11
            recorded)"},
    {"a step that is on the disk is answered before its record is", with_tail(step_setup(1, 1), 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; settle - 1; end committed a; record 1/1/0 1
            begin 0 plain -> pass 0
            recorded)"},
    {"a block that updates are behind with is kept, and its update follows", with_tail(step_setup(1, 3), 1, 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 c -> update c
            push 0 b -> keep b
            caught_up c
            push 0 a -> update a
            kept b 1
            written c
            vote 0 -> finish_owed
            caught_up a -> settle b 1; end committed cba
            written a
            caught_up b
            written b -> record 1/1/0 111
            recorded)"},
    {"chunks are counted: those that are updated, and those that memory keeps",
     with_chunks(with_tail(step_setup(1, 4), 2, 2), 2, 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 d -> update d
            push 0 c -> update c
            push 0 b -> keep b
            push 0 a -> keep a)"},
    {"what memory cannot keep is updated at once", with_chunks(with_tail(step_setup(1, 3), 1, 1), 1, 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            push 0 b -> update b
            push 0 c -> keep c)"},
    {"until the record of the step before is on the disk, blocks are kept", with_tail(step_setup(1, 1), 1, 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            caught_up a -> settle - 1; end committed a
            begin 0 plain -> pass 0
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed
            written a -> record 1/1/0 1
            recorded -> settle a 1; end committed a
            caught_up a
            written a -> record 2/2/0 2
            recorded)"},
    {"or wait for it, where memory cannot keep them", with_tail(step_setup(1, 1), 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            caught_up a -> settle - 1; end committed a
            begin 0 plain -> pass 0
            push 0 a -> hurry a
            vote 0 -> finish_owed
            written a -> record 1/1/0 1
            recorded -> update a
            caught_up a -> settle - 1; end committed a)"},
    {"a gradient waits for the kept one that is still needed", with_tail(step_setup(1, 2), 1, 2), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            push 0 b -> keep b
            kept b 1
            caught_up a
            vote 0 -> finish_owed; settle b 1; end committed ab
            begin 0 plain -> pass 0
            push 0 b -> hurry b
            caught_up b -> keep b)"},
    {"a step that is not finite is taken back when it is on the disk", with_tail(step_setup(1, 2), 1, 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 b -> update b
            push 0 a -> keep a
            spoiled
            kept a nan
            caught_up b
            vote 0 -> finish_owed; take_back b
            taken_back!)"},
    {"and is void then", with_tail(step_setup(1, 2), 1, 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 b -> update b
            push 0 a -> keep a
            spoiled
            kept a nan
            caught_up b
            vote 0 -> finish_owed; take_back b
            written b
            taken_back -> end not_finite ba
            begin 0 plain -> pass 0
            push 0 b -> update b
            push 0 a -> keep a)"},
    {"a step that speculates keeps all, and updates what it can", with_tail(step_setup(1, 2), 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 0.25
            kept b 0.25
            vote 0 -> finish_owed; settle ab 1; end committed 0.5 ab
            caught_up a
            caught_up b
            written a
            written b -> record 1/1/0 11
            recorded
            begin 0 limit -> pass 0
            push 0 b -> update+keep b
            push 0 a -> keep a
            caught_up b
            kept a 0.25
            vote 0 -> finish_owed
            kept b 0.25 -> settle a 1; end committed 0.5 ba
            caught_up a
            written a
            written b -> record 2/2/0 22
            recorded)"},
    {"it is taken back if it is clipped after all", with_tail(step_setup(1, 2), 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 0.25
            kept b 0.25
            vote 0 -> finish_owed; settle ab 1; end committed 0.5 ab
            caught_up a
            caught_up b
            written a
            written b -> record 1/1/0 11
            recorded
            begin 0 limit -> pass 0
            push 0 b -> update+keep b
            push 0 a -> keep a
            kept b 2
            caught_up b
            kept a 2
            vote 0 -> finish_owed; take_back b
            written b
            taken_back -> settle ba 0.499999762; end committed 4 ba)"},
    {"a failed run still owes what it has answered", with_tail(step_setup(1, 1), 1), R"(
            begin 0 plain -> plan; pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            caught_up a -> settle - 1; end committed a
            fail -> fail the server was closed
            written a -> record 1/1/0 1
            recorded)"},
};

}  // namespace luwu::test
