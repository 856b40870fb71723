// Rows of workers that are lost: the attempt is void where the lost worker was in it, and waits for another where it
// was not.
#include "step_histories_rows.h"

namespace luwu::test {

namespace {

// All workers are lost, and the step is the first.
#define UNDECIDED                                                                           \
    "all workers were lost before this server knew how the others ended step 1; run again " \
    "to resume from the last step that all have"

StepSetup several(std::uint32_t workers) { return step_setup(workers, 1, false, true); }

}  // namespace

const std::vector<StepRow> kLostRows{
    {"a worker that has pushed is lost: the others vote, and the attempt is void", step_setup(2, 2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            push 1 b
            lose 1 -> give_back b
            push 0 b -> give_back b
            caught_up a
            written a
            vote 0 -> give_back b; finish_owed; take_back a
            taken_back -> end void a)"},
    {"the attempt that follows a void one has its number, and the record counts it once", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            lose 1
            push 0 a -> give_back a
            vote 0 -> finish_owed; take_back -
            taken_back -> end void -
            join 1
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            caught_up a
            written a
            vote 0
            vote 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"a worker that had not begun is lost: the others' gradients wait for the one that joins", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            push 0 a
            vote 0
            lose 1
            join 1
            begin 1 plain -> pass 1
            push 1 a -> update a
            caught_up a
            written a
            vote 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"a worker whose vote counts is lost: the attempt goes on to its commit", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 1 a
            vote 1
            lose 1
            push 0 a -> update a
            caught_up a
            written a
            vote 0 -> finish_owed; record 1/1/0 1
            recorded -> end committed a
            join 1
            begin 1 plain -> pass 1)"},
    {"a worker is lost between its vote and the pushes that it waits for", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 1 of 1
            push 0 a
            lose 1 -> give_back a
            vote 0 -> give_back a; finish_owed; take_back -
            taken_back -> end void -)"},
    {"a worker is lost while the commit record is written", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            caught_up a
            written a
            vote 0
            vote 1 -> finish_owed; record 1/1/0 1
            lose 1
            recorded -> end committed a)"},
    {"all workers are lost: the attempt ends without a vote", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            lose 0
            lose 1 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"a second worker is lost in a void attempt", step_setup(3, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            begin 2 plain -> pass 2
            vote 0 of 0
            lose 1
            lose 2 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"who joins in a void attempt begins it, and votes on it with the others", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            lose 1
            join 1
            vote 0
            begin 1 plain -> pass 1
            push 1 a -> give_back a
            vote 1 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"a worker gives up an attempt that a lost one has made void: it is void", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            lose 1 -> give_back a
            vote 0 back -> give_back a; finish_owed; take_back -
            taken_back -> end void -)"},
    {"a worker is lost in an attempt that another has given up: it is void", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 back
            lose 1 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"an attempt that was given up waits for the worker that joins", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            vote 0 back
            lose 1
            join 1
            begin 1 plain -> pass 1
            vote 1 -> finish_owed; take_back -
            taken_back -> end rolled_back -)"},
    {"an attempt with a gradient that is not finite is void, too", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            spoiled
            lose 1
            caught_up a
            written a
            vote 0 -> finish_owed; take_back a
            taken_back -> end void a)"},
    {"with clipping, the update of the step before goes on in a void attempt", step_setup(2, 1), R"(
            begin 0 limit -> plan; pass 0
            begin 1 limit -> pass 1
            push 0 a
            push 1 a -> keep a
            kept a 0.25
            vote 0
            vote 1 -> finish_owed; settle a 0.5; end committed 0.25 a
            begin 0 limit -> pass 0
            begin 1 limit -> pass 1
            lose 1
            vote 0 -> finish_owed; take_back -
            taken_back -> end void -
            caught_up a
            written a -> record 1/1/0 1
            recorded)"},
    {"with one stream, what is under way is dropped first", step_setup(2, 1, true), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            vote 0 of 1
            lose 1 -> epoch
            epoch_begun -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"with one stream, an attempt that the lost worker had not begun is void", step_setup(2, 1, true), R"(
            begin 0 plain -> pass 0
            lose 1 -> epoch
            epoch_begun
            vote 0 of 1 -> finish_owed; take_back -
            taken_back -> end void -
            join 1
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 2
            vote 1 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"with one stream, an attempt that the lost worker has voted on is void without its sums", step_setup(2, 1, true),
     R"(
            begin 0 plain -> pass 0
            begin 1 plain
            vote 1 of 1
            lose 1 -> epoch
            epoch_begun
            vote 0 of 1 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"with one stream, an attempt that has all sums and votes goes on", step_setup(2, 1, true), R"(
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            vote 0 of 1
            vote 1 of 1 -> finish_owed
            lose 1
            caught_up a
            written a -> record 1/1/0 1
            recorded -> end committed a)"},
    {"with one stream, a loss between two attempts changes nothing", step_setup(2, 1, true), R"(
            lose 1
            join 1
            begin 0 plain -> pass 0
            begin 1 plain
            push 0 a -> update a
            caught_up a
            written a
            vote 0 of 1
            vote 1 of 1 -> finish_owed; record 1/1/0 1
            recorded -> end committed a)"},
    {"a loss after a failure changes nothing", step_setup(2, 1), R"(
            begin 0 plain -> pass 0
            fail -> fail the server was closed
            lose 0
            join 0)"},
    {"at one of several servers: another has voided the attempt, and this one had prepared it", several(2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            caught_up a
            written a
            vote 1
            lose 1
            vote 0 -> finish_owed; answer prepared
            annul 1
            annul 0 -> take_back a
            annul 0
            taken_back -> end void a
            annul 0
            join 1
            begin 0 plain -> pass 0)"},
    {"the same, and it is writing what it has", several(2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            vote 0
            vote 1 -> finish_owed
            annul 0
            caught_up a
            written a -> take_back a
            taken_back -> end void a)"},
    {"the same, and the attempt was to be rolled back", several(2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 back
            vote 1 -> finish_owed; answer rolled_back
            lose 1
            annul 0 -> take_back -
            taken_back -> end void -)"},
    {"the same, and it waits for the worker that joins", several(2), R"(
            begin 0 plain -> pass 0
            push 0 a
            lose 1
            vote 0
            annul 0 -> give_back a; give_back a; finish_owed; take_back -
            taken_back -> end void -
            join 1)"},
    {"the same, and a worker has joined, which is an attempt further at the other server", several(2), R"(
            begin 0 plain -> pass 0
            push 0 a
            lose 1
            join 1
            begin 1 plain -> pass 1
            annul 0 -> give_back a
            vote 1
            vote 0 -> give_back a; finish_owed; take_back -
            taken_back -> end void -
            begin 1 plain -> pass 1
            push 1 a)"},
    {"the same, and a vote waits for its pushes", several(2), R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            vote 0 of 1
            annul 0
            push 0 a -> give_back a
            vote 1 -> finish_owed; take_back -
            taken_back -> end void -)"},
    {"the same, and nobody has begun it here", several(2), R"(
            lose 1
            annul 0
            begin 0 plain -> pass 0
            push 0 a -> give_back a
            vote 0 -> finish_owed; take_back -
            taken_back -> end void -
            join 1)"},
    {"a server that is alone makes no attempt void because of another one", step_setup(1, 1), R"(
            begin 0 plain -> pass 0
            annul 0
            push 0 a -> update a)"},
    {"nobody is left who knows how other servers ended a prepared step", several(2),
     R"(
            begin 0 plain -> pass 0
            begin 1 plain -> pass 1
            push 0 a
            push 1 a -> update a
            caught_up a
            written a
            vote 0
            vote 1 -> finish_owed; answer prepared
            lose 0
            lose 1 -> lost )" UNDECIDED},
    {"the same, and all were lost before it was prepared", several(1), R"(
            begin 0 plain -> pass 0
            push 0 a -> update a
            vote 0 -> finish_owed
            lose 0
            caught_up a
            written a -> answer prepared; lost )" UNDECIDED},
};

}  // namespace luwu::test
