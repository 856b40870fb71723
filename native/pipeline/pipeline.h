// The server's six parts over one store. Each has its own queue and threads; a block rotates from part to part:
//   1 read parameters   2 hand them to workers   3 collect gradients   4 read states   5 update   6 write and commit
// Parts 2 and 3 are the streams of the fabric, which call pull() and push() here. What is decided, by whom and when, is
// the step machine's (step/machine.h); the executor turns its actions into the work of the parts.
// Every public function may be called from any thread. Replies are called with the pipeline's lock held: they must be
// short and must not call back. docs/decisions/0016-step-machine.md
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pipeline/block_view.h"
#include "pipeline/chunk_update.h"
#include "pipeline/last_word.h"
#include "pipeline/types.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

class Executor;

class Pipeline {
  public:
    Pipeline(store::ChunkStore& store, PipelineSettings settings);
    // Finishes transfers under way, and a step that was answered; what is not committed is lost, as in a crash.
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // Writes the first values of a whole block (fp32) at update count 0.
    void initialise(std::uint32_t block, const float* values);
    void finish_initialise();  // commits step 0

    // Sets the parameter group of each range of a block; without a call all is group 0. Before the first step only.
    void set_segments(std::uint32_t block, std::vector<Segment> segments);
    // Starts a worker's step. All workers must bring the same settings. The first step of all decides whether there is
    // clipping. `refusal` is the failure of the run, where this call is its cause.
    struct Begun {
        bool given_up = false;    // another worker wants the step rolled back already
        std::uint64_t ended = 0;  // attempts before this one: several servers must be in the same
        std::optional<Error> refusal;
    };
    Begun begin(std::uint32_t worker, const std::vector<GroupSettings>& groups, const GradientSettings& gradient = {});
    void pull(std::uint32_t stream, std::uint32_t block, Reply reply);
    // A pull that is part of no worker's pass, such as an evaluation's, outside of that worker's own steps. Ends with
    // release(), soon: places in the window are few.
    void read(std::uint32_t block, Reply reply);
    void release(std::uint32_t block);
    // `gradient` is the whole block's, in its gradients' dtype, and stays in place until the reply.
    void push(std::uint32_t stream, std::uint32_t block, const std::byte* gradient, Reply reply);
    // Ends a worker's step. When all have: commits, or rolls back if one asks for it or a gradient was not finite. With
    // clipping the answer may come before the updates: they follow, and are committed before the next step is.
    void vote(std::uint32_t worker, bool roll_back, Reply reply);
    // The same, for a vote that may overtake its worker's pushes: it counts when `pushes` in all have come since the
    // worker joined. wait_for_end() gives the answer. Throws Error(order) where the vote is refused.
    void vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes);
    // The end of the step that this worker voted on last; nothing when that takes longer. Throws Error(order) if it has
    // not voted since it joined, and the error that failed the run.
    [[nodiscard]] std::optional<Outcome> wait_for_end(std::uint32_t worker, std::chrono::milliseconds at_most);
    // One of several servers: the worker's decision on an attempt that was answered, or is void elsewhere.
    [[nodiscard]] LastWord last_word(std::uint32_t worker);
    // With one stream, after on_given_up: what was under way from the workers has been dropped, or pushed here.
    void epoch_begun();
    // Returns when every step that was answered is on the disk; an error where one of them never will be.
    std::optional<Error> wait_until_written();
    // Returns true once the last step that was answered is on the disk, commit point or not; false: that takes longer.
    // Throws the store's error where it cannot get there.
    [[nodiscard]] bool make_durable(std::chrono::milliseconds at_most);
    void stop_waiting_for_room();       // of a run that has failed: a write that finds no room is an error from now on
    void joined(std::uint32_t worker);  // takes a place, perhaps one that another has left; its pushes count from zero
    // The worker will make no more steps. Fails the pipeline when others are in one, or begin one later.
    void leave(std::uint32_t worker);
    // The worker is gone, and another may join at its place: step::Machine::lose. Its pushes are answered when the
    // attempt has ended; its pulls must be released. Returns the attempts that ended before the one that is void now;
    // nothing: none is.
    std::optional<std::uint64_t> lose(std::uint32_t worker);
    // Returns true once another worker may join at the place of a lost one, or the run has failed; false: not in time.
    [[nodiscard]] bool wait_for_place(std::uint32_t worker, std::chrono::milliseconds at_most);

    void fail(const Error& error);
    [[nodiscard]] std::optional<Error> failure() const;
    [[nodiscard]] PipelineStats stats() const;
    [[nodiscard]] std::vector<BlockView> look() const;  // at each block
    [[nodiscard]] const char* io_name() const;

  private:
    [[nodiscard]] bool serves();  // else the run has failed, perhaps because the store has no values

    std::unique_ptr<Executor> executor_;
};

}  // namespace luwu::pipeline
