// Rows of what workers are refused.
#include "step_histories_rows.h"

namespace luwu::test {

const std::vector<StepRow> kRefusedRows{
    {"other settings", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 other -> fail worker 1 began step 1 with other hyper-parameters than the workers before it; give every worker the same optimizer settings and schedule)"},
    {"another loss scale", step_setup(2, 1), R"(
            begin 1 plain -> pass 1
            begin 0 scaled -> fail worker 0 began step 1 with other hyper-parameters than the workers before it; give every worker the same optimizer settings and schedule)"},
    {"other settings after another worker has voted", step_setup(2, 1), R"(
            begin 0 limit -> plan; pass 0
            push 0 a
            vote 0
            begin 1 limit_other -> fail worker 1 began step 1 with other hyper-parameters than the workers before it; give every worker the same optimizer settings and schedule)"},
    {"a limit for one worker alone", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 limit -> fail worker 1 began step 1 with other hyper-parameters than the workers before it; give every worker the same optimizer settings and schedule)"},
    {"a step begun twice", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            push 0 a
            begin 0 plain -> fail worker 0 began a step twice)"},
    {"a step begun twice, with other settings", step_setup(2, 1), R"(
            begin 0 limit -> plan; pass 0
            begin 0 limit_other -> fail worker 0 began a step twice)"},
    {"a step begun twice, where all gradients come as one sum", step_setup(2, 1, true), R"(
            begin 0 plain -> pass 0
            begin 0 plain -> fail worker 0 began a step twice)"},
    {"a step begun again before the others have voted", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            vote 0
            begin 0 plain -> fail worker 0 began a step twice)"},
    {"a step begun while a prepared one waits", step_setup(1, 1, false, true), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; answer prepared
            begin 0 plain -> fail worker 0 began a step before the one before it was decided on)"},
    {"a limit that the run's first step had not", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            begin 0 limit -> fail a step began with max_grad_norm and the run's first one without; give every step one or none)"},
    {"no limit where the run's first step had one", step_setup(1, 1), R"(
            begin 0 high -> plan; pass 0
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            begin 0 limit -> pass 0
            vote 0 back -> finish_owed; take_back -
            taken_back -> end rolled_back -
            begin 0 plain -> fail a step began without max_grad_norm and the run's first one with; give every step one or none)"},
    {"a push before the step", step_setup(1, 1), R"(
            push 0 a -> fail worker 0 pushed block 'a' before it began a step)"},
    {"a push after the vote", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            vote 0
            push 0 b -> fail worker 0 pushed block 'b' before it began a step)"},
    {"a push twice", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            push 0 a
            push 0 a -> fail worker 0 pushed block 'a' twice in one step)"},
    {"a push twice of a step that is given up", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 back
            push 1 a -> give_back a
            push 1 a -> fail worker 1 pushed block 'a' twice in one step)"},
    {"a push of one stream after its step has closed", step_setup(2, 2, true), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            push 0 b -> update b
            vote 0 of 2
            vote 1 of 2 -> finish_owed
            push 0 a -> fail worker 0 pushed block 'a' before it began a step)"},
    {"a pull after the push", step_setup(2, 1), R"(
            begin 1 plain -> pass 1
            pull 1 a
            push 1 a
            pull 0 a
            pull 1 a -> fail worker 1 pulled block 'a' again after pushing its gradient in the same step)"},
    {"a vote without a step", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            vote 1 -> fail worker 1 ended a step that it had not begun)"},
    {"a vote with fewer pushes than the vote before", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            begin 0 plain -> pass 0
            vote 0 back of 0 -> fail worker 0 ended a step that it had not begun)"},
    {"a second vote is refused alone", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            vote 0 of 1
            vote 0 of 1 -> refuse worker 0 voted twice on one step
            push 0 a
            vote 0 back -> refuse worker 0 voted twice on one step
            begin 1 plain -> pass 1
            push 1 a -> update a
            vote 1 -> finish_owed
            vote 1 -> refuse worker 1 voted twice on one step
            caught_up a
            written a -> record 1/1/0 1
            recorded -> end committed a
            vote 1 -> fail worker 1 ended a step that it had not begun)"},
    {"a block that one of three workers did not push", step_setup(3, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            begin 2 plain -> pass 2
            push 0 b
            push 2 b
            vote 0
            vote 1
            vote 2 -> fail block 'b' was pushed by 2 of 3 workers; every worker must run the same blocks in a step)"},
    {"a frozen block that one worker pushed", with_frozen(step_setup(2, 1), 0), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            vote 0
            vote 1 -> fail block 'a' was pushed by 1 of 2 workers; every worker must run the same blocks in a step)"},
    {"a trainable block that nobody pushed", step_setup(1, 2), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            vote 0 -> fail block 'b' was pushed by no worker; every worker must push all trainable blocks in a step, zeros where there is nothing)"},
    {"one stream: votes that count different pushes", step_setup(3, 1, true), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            begin 2 plain
            vote 0 of 1
            vote 1 of 1
            vote 2 of 2 -> fail worker 0 pushed 1 blocks in a step and worker 2 2; every worker must run the same blocks in a step)"},
    {"one stream: a trainable block that nobody pushed", step_setup(2, 1, true), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            vote 0 of 0
            vote 1 of 0 -> fail block 'a' was pushed by no worker; every worker must push all trainable blocks in a step, zeros where there is nothing)"},
    {"after a refusal workers are not heard", step_setup(2, 1), R"(
            push 0 a -> fail worker 0 pushed block 'a' before it began a step
            begin 0 plain
            pull 0 a
            push 0 a
            vote 0
            decide yes -1
            leave 1)"},
};

}  // namespace luwu::test
