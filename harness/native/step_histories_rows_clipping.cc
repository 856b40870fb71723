// Rows of steps that are clipped by their global norm.
#include "step_histories_rows.h"

namespace luwu::test {

const std::vector<StepRow> kDeferredRows{
    {"a step is answered when its norm is known: it is clipped", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 b -> keep b
            push 0 a -> keep a
            kept a 1
            vote 0 -> finish_owed
            kept b 3 -> settle ba 0.499999762; end committed 4 ba
            caught_up b
            written b
            caught_up a
            written a -> record 1/1/0 11
            recorded)"},
    {"the last vote settles it: it is not clipped, and loss scale divides", step_setup(2, 1), R"(
            begin 0 limit_scaled -> plan; pass 0
            begin 1 limit_scaled -> pass 1
            push 0 a
            push 1 a -> keep a
            kept a 0.25
            vote 1
            vote 0 -> finish_owed; settle a 0.0625; end committed 0.25 a
            caught_up a
            written a -> record 1/1/0 1 scale 8
            recorded)"},
    {"gradients of the next step wait for their own block's update alone, and hurry it", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 4
            kept b 5
            vote 0 -> finish_owed; settle ab 0.333333224; end committed 9 ab
            begin 0 limit -> pass 0
            caught_up a
            written a
            push 0 a -> keep a
            push 0 b -> hurry b
            kept a 0.5
            vote 0 -> finish_owed
            caught_up b -> keep b
            written b -> record 1/1/0 11
            kept b 0.25
            recorded -> settle ab 1; end committed 0.75 ab
            caught_up a
            written a
            caught_up b
            written b -> record 2/2/0 22
            recorded)"},
    {"a step that is given up ends while the step before is owed", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 4
            vote 0 -> finish_owed; settle a 0.499999762; end committed 4 a
            begin 0 limit -> pass 0
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            caught_up a
            written a -> record 1/1/0 1
            recorded)"},
    {"a step that is given up keeps what waited for the step before", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 4
            vote 0 -> finish_owed; settle a 0.499999762; end committed 4 a
            begin 0 limit -> pass 0
            push 0 a -> hurry a
            vote 0 back -> finish_owed
            caught_up a -> keep a
            written a -> record 1/1/0 1
            kept a 1 -> take_back -
            taken_back -> end rolled_back a
            recorded)"},
    {"a gradient that is not finite: nobody knows the norm", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            spoiled
            kept a nan
            push 0 b -> give_back b
            vote 0 -> finish_owed; take_back -
            taken_back -> end not_finite nan ab)"},
    {"no block is trainable: nothing is owed but the record", with_frozen(step_setup(1, 1), 0), R"(
            begin 0 limit -> plan; pass 0
            vote 0 -> finish_owed; settle - 1; end committed 0 -; record 1/1/0 0
            recorded)"},
    {"no block is trainable, and the next step is clipped after all", with_frozen(step_setup(1, 1), 0), R"(
            begin 0 limit -> plan; pass 0
            vote 0 -> finish_owed; settle - 1; end committed 0 -; record 1/1/0 0
            recorded
            begin 0 zero -> pass 0
            vote 0 -> finish_owed; take_back -
            taken_back -> settle - 0; end committed 0 -; record 2/2/0 0
            recorded)"},
    {"the sum of the squares overflows: everything is clipped away", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1e+308
            kept b 1e+308
            vote 0 -> finish_owed; settle ab 0; end committed inf ab)"},
};

const std::vector<StepRow> kSpeculatingRows{
    {"a step is updated before its norm is known, and is not clipped", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 0.25
            kept b 0.25
            vote 0 -> finish_owed; settle ab 1; end committed 0.5 ab
            caught_up a
            written a
            caught_up b
            written b -> record 1/1/0 11
            recorded
            begin 0 limit -> pass 0
            push 0 b -> update+keep b
            push 0 a -> update+keep a
            kept b 0.25
            caught_up b
            written b
            vote 0 -> finish_owed
            caught_up a
            written a
            kept a 0.5 -> record 2/2/0 22
            recorded -> end committed 0.75 ba
            begin 0 limit -> pass 0
            push 0 a -> update+keep a
            push 0 b -> update+keep b
            kept a 0.25
            caught_up a
            written a
            kept b 0.5
            caught_up b
            written b
            vote 0 -> finish_owed; record 3/3/0 33
            recorded -> end committed 0.75 ab)"},
    {"a step is updated, then clipped after all: taken back and updated again; the next is deferred", step_setup(1, 2),
     R"(
            begin 0 high -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 1
            kept b 1
            vote 0 -> finish_owed; settle ab 1; end committed 2 ab
            caught_up a
            written a
            caught_up b
            written b -> record 1/1/0 11
            recorded
            begin 0 limit -> pass 0
            push 0 b -> update+keep b
            push 0 a -> update+keep a
            caught_up a
            written a
            caught_up b
            written b
            kept a 1
            kept b 3
            vote 0 -> finish_owed; take_back ba
            taken_back -> settle ba 0.499999762; end committed 4 ba
            caught_up a
            begin 0 limit -> pass 0
            push 0 a -> keep a
            written a
            caught_up b
            written b -> record 2/2/0 22
            recorded)"},
    {"updates wait for the record of the step before, in the order of their pushes", step_setup(1, 3), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            push 0 c -> keep c
            kept a 0
            kept b 0
            kept c 0
            vote 0 -> finish_owed; settle abc 1; end committed 0 abc
            begin 0 limit -> pass 0
            push 0 c -> hurry c
            caught_up a
            caught_up b
            caught_up c
            written a
            written b
            push 0 a -> hurry a
            written c -> record 1/1/0 111
            push 0 b -> hurry b
            vote 0 -> finish_owed
            recorded -> update+keep c; update+keep a; update+keep b
            kept a 0
            kept b 0
            kept c 0
            caught_up a
            written a
            caught_up b
            written b
            caught_up c
            written c -> record 2/2/0 222
            recorded -> end committed 0 cab)"},
    {"a step that is given up waits with them, too", step_setup(1, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            kept a 0
            vote 0 -> finish_owed; settle a 1; end committed 0 a
            begin 0 limit -> pass 0
            push 0 a -> hurry a
            vote 0 back -> finish_owed
            caught_up a
            written a -> record 1/1/0 1
            recorded -> update+keep a
            kept a 0
            caught_up a
            written a -> take_back a
            taken_back -> end rolled_back a)"},
    {"a gradient that is not finite is taken back, and the next step speculates again", step_setup(1, 2), R"(
            begin 0 limit -> plan; pass 0
            push 0 a -> keep a
            push 0 b -> keep b
            kept a 0
            kept b 0
            vote 0 -> finish_owed; settle ab 1; end committed 0 ab
            caught_up a
            caught_up b
            written a
            written b -> record 1/1/0 11
            recorded
            begin 0 limit -> pass 0
            push 0 a -> update+keep a
            caught_up a
            written a
            spoiled
            kept a nan
            push 0 b -> give_back b
            vote 0 -> finish_owed; take_back a
            taken_back -> end not_finite nan ab
            begin 0 limit -> pass 0
            push 0 a -> update+keep a
            push 0 b -> update+keep b
            kept a 0
            kept b 0
            caught_up a
            written a
            caught_up b
            written b
            vote 0 -> finish_owed; record 2/3/1 22
            recorded -> end committed 0 ab)"},
    {"a limit of zero clips a gradient of zeros", step_setup(1, 1), R"(
            begin 0 zero -> plan; pass 0
            push 0 a -> keep a
            kept a 0
            vote 0 -> finish_owed; settle a 0; end committed 0 a)"},
};

}  // namespace luwu::test
