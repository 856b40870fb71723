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

    // Commits or rolls back a step whose votes were answered, where it is not over. With clipping, `squares` is the sum
    // over all servers. The first call of all workers counts.
    void decide(bool commits, double squares = kNoSquares);
    // The attempt that the worker is in is void, because that of another server is: step::Machine::annul.
    void annul();
    // The end of the worker's attempt; nothing when it takes longer. Throws what failed the run.
    [[nodiscard]] std::optional<Outcome> wait(std::chrono::milliseconds at_most);

  private:
    Executor* executor_;
    std::uint32_t worker_;
};

}  // namespace luwu::pipeline
