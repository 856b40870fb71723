// A worker's last word on an attempt, which one server of several waits for. Functions may be called from any thread.
// docs/decisions/0039-lost-workers-of-several-servers.md
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "pipeline/types.h"

namespace luwu::pipeline {

class Executor;

class LastWord {
  public:
    LastWord(Executor& executor, std::uint32_t worker) : executor_(&executor), worker_(worker) {}

    // `ended`: attempts that had ended before the one that the word is on. Where the server is in another one, nothing
    // happens.

    // Commits or rolls back a step whose votes were answered. With clipping, `squares` is the sum over all servers. The
    // first call of all workers counts.
    void decide(std::uint64_t ended, bool commits, double squares = kNoSquares);
    // The attempt is void, because that of another server is: step::Machine::annul.
    void annul(std::uint64_t ended);
    // The end of the attempt that the worker voted on last, once it is over; at once where the worker waits for none.
    // Nothing when it takes longer. Throws what failed the run.
    [[nodiscard]] std::optional<Outcome> wait(std::chrono::milliseconds at_most);

  private:
    Executor* executor_;
    std::uint32_t worker_;
};

}  // namespace luwu::pipeline
