// A server's step as a pure machine: events in, actions out. It decides who is in a step, when gradients are kept,
// updated or given back, and when a step is prepared, committed or rolled back. It has no lock, thread, clock or I/O:
// the pipeline executes its actions, and tests and simulations run it alone. docs/decisions/0016-step-machine.md
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "step/actions.h"
#include "step/state.h"

namespace luwu::step {

// Every event returns the actions that it causes, in their order. After a failure, events change only what is owed to
// the step before, whose updates go on. `worker` and `stream` count from 0, and are the same where each worker pushes
// its own gradients.
class Machine {
  public:
    // `standing`: the store's last commit.
    Machine(Rules rules, const store::CommitRecord& standing) : state_(std::move(rules), standing) {}

    [[nodiscard]] const State& state() const { return state_; }

    // ---- what workers ask
    [[nodiscard]] Actions begin(std::uint32_t worker, const StepSettings& settings);
    [[nodiscard]] Actions pull(std::uint32_t stream, std::uint32_t block);
    [[nodiscard]] Actions push(std::uint32_t stream, std::uint32_t block);
    // The vote may overtake the worker's pushes: it counts when `pushes` in all have come since the worker joined.
    // None: all have come.
    [[nodiscard]] Actions vote(std::uint32_t worker, bool roll_back, std::optional<std::uint64_t> pushes = {});
    // The last word on a prepared step. The first call counts. `squares`: with clipping, the sum over all servers.
    [[nodiscard]] Actions decide(bool commits, double squares = kNoSquares);
    // One server of several: the attempt that follows `ended` others is void at another server, and so here, whoever
    // has begun it. Nothing, where this server is in another attempt.
    [[nodiscard]] Actions annul(std::uint64_t ended);
    // A worker takes this place; the one before it there is gone.
    [[nodiscard]] Actions join(std::uint32_t worker);
    // The worker makes no more steps.
    [[nodiscard]] Actions leave(std::uint32_t worker);
    // The worker is gone, and another may join at its place. The attempt is void if the worker was in it and its vote
    // does not count yet; else the attempt goes on, and waits for the one that joins. The run fails where a step is
    // prepared and nobody is left who may know how other servers ended it.
    [[nodiscard]] Actions lose(std::uint32_t worker);

    // The next step that is committed is a commit point: it is time for one. Nothing, while one is being written.
    [[nodiscard]] Actions commit_soon();
    // The last step that was answered is to be on the disk, whether another follows or not.
    [[nodiscard]] Actions make_durable();

    // ---- what the executor has done
    [[nodiscard]] Actions kept(std::uint32_t block, double squares);  // the sum is where it stays until the update
    [[nodiscard]] Actions spoiled();                                  // a gradient of this step is not finite
    [[nodiscard]] Actions caught_up(std::uint32_t block);             // memory holds its update
    // The update is in memory, and on the disk unless the action let it stay in memory. Comes after caught_up().
    [[nodiscard]] Actions written(std::uint32_t block);
    [[nodiscard]] Actions point_written();  // all records of the commit point that follows
    [[nodiscard]] Actions taken_back();
    [[nodiscard]] Actions recorded();  // the commit record is durable
    [[nodiscard]] Actions epoch_begun();

    // ---- what ends a run
    [[nodiscard]] Actions fail(const Error& error);
    [[nodiscard]] Actions break_down(const Error& error);  // the store is at fault: nothing more is written

  private:
    [[nodiscard]] Actions take() { return std::exchange(actions_, {}); }
    void refuse(const std::string& message);  // fails the run: workers did not do what all must do alike
    void all_arrived(std::uint32_t block);
    void update(std::uint32_t block);
    void count_vote(std::uint32_t worker);
    void abandon(Verdict verdict);
    void return_unfinished();
    void try_close();
    void try_end();
    void take_back_all();
    void prepare(const Ending& ending);
    void fail_if_nobody_decides();
    void end_kept(double squares);
    void settle();
    void try_record();
    void follow_point();
    void no_more_owed();
    void try_flush();
    void write_record();
    void finish(StepEnd end);
    void to(std::uint32_t block, BlockEvent event);

    State state_;
    Actions actions_;  // of the event under way
};

}  // namespace luwu::step
