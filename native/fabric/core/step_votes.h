// The steps of many workers that the pipeline sees as one: they begin with the same settings, and end by a vote of all.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "pipeline/pipeline.h"

namespace luwu::fabric {

struct VoteEvents {
    // By the first worker.
    std::function<void(const std::vector<pipeline::GroupSettings>& groups, const pipeline::GradientSettings& gradient)>
        begun;
    std::function<void()> given_up;  // one worker asks for the step to be rolled back, perhaps before others vote
    std::function<void(bool roll_back, std::uint64_t pushes)> ended;  // all have voted; each pushed so often in it
};

// Functions may be called from any thread. Events are called with the lock held, so they only hand on.
class StepVotes {
  public:
    StepVotes(std::uint32_t workers, VoteEvents events);

    // Both throw Error(order), naming the workers, where they do not do the same. begin(): whether the step was given
    // up already, and what `epoch` returned while nothing could change that.
    struct Begun {
        bool given_up;
        std::uint32_t epoch;
    };
    Begun begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                const pipeline::GradientSettings& gradient, const std::function<std::uint32_t()>& epoch);
    void vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes);  // pushes: of this worker, since it joined
    void answer(pipeline::Outcome outcome);                                 // to the oldest step that all have voted on
    // The answer to the step that this worker voted on last; nothing when it takes longer. Throws Error(order) where it
    // has not voted since it joined.
    [[nodiscard]] std::optional<pipeline::Outcome> wait(std::uint32_t worker, std::chrono::milliseconds at_most);

    void joined(std::uint32_t worker);  // its pushes are counted from zero again
    // The worker will make no more steps: whether others are in one. begin() throws Error(worker_lost) from now on.
    [[nodiscard]] bool leave(std::uint32_t worker);

  private:
    struct Worker {
        bool begun = false;
        bool has_voted = false;
        std::uint64_t pushes = 0;          // up to its last vote
        std::uint64_t pushes_in_step = 0;  // as it voted
        std::uint64_t voted = 0;           // steps
    };

    void end_step();

    VoteEvents events_;
    mutable std::mutex mutex_;
    std::condition_variable answered_;
    std::vector<Worker> workers_;
    std::vector<pipeline::GroupSettings> groups_;
    pipeline::GradientSettings gradient_;
    std::uint32_t begun_ = 0;
    std::uint32_t votes_ = 0;
    std::uint64_t steps_ = 0;  // that all have voted on
    std::uint64_t answers_ = 0;
    pipeline::Outcome outcome_;  // of the last answer: nobody can vote again before having waited for it
    bool roll_back_ = false;
    std::optional<std::uint32_t> left_;
};

}  // namespace luwu::fabric
