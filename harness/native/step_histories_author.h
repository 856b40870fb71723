// Writes random histories: likely events of workers, an executor that ends its work in any order, and wrong events.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "step_histories.h"

namespace luwu::test {

// Numbers that are the same on every machine.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}
    std::uint64_t roll();
    std::uint32_t below(std::uint64_t end) { return static_cast<std::uint32_t>(roll() % end); }
    bool chance(std::uint32_t of_thousand) { return below(1000) < of_thousand; }

  private:
    std::uint64_t state_;
};

class StepAuthor {
  public:
    explicit StepAuthor(std::uint64_t seed);

    [[nodiscard]] const StepSetup& setup() const { return setup_; }
    // The next event of a machine in this state; nothing where the history is over.
    [[nodiscard]] std::optional<StepEvent> next(const step::State& state);
    // The work that these actions give to the executor.
    void take(const step::Actions& actions);

  private:
    [[nodiscard]] std::optional<StepEvent> likely(const step::State& state);
    [[nodiscard]] std::optional<StepEvent> of_worker(const step::State& state, std::uint32_t worker);
    [[nodiscard]] StepEvent begin(const step::State& state, std::uint32_t worker);
    [[nodiscard]] StepEvent vote(const step::State& state, std::uint32_t worker, bool early);
    [[nodiscard]] StepEvent decide(const step::State& state);
    [[nodiscard]] StepEvent annul(const step::State& state);
    [[nodiscard]] StepEvent completion(const step::State& state);
    [[nodiscard]] std::size_t chosen_completion(const step::State& state);
    [[nodiscard]] StepEvent trouble(const step::State& state);
    [[nodiscard]] StepEvent anything();
    [[nodiscard]] std::optional<std::uint32_t> unpushed(const step::State& state, std::uint32_t stream);
    [[nodiscard]] double some_squares();

    Dice dice_;
    StepSetup setup_;
    std::vector<std::uint32_t> settings_;  // that steps of this history begin with
    std::uint32_t of_step_ = 0;            // that this step began with
    std::uint32_t events_left_;
    std::uint32_t wrong_, busy_, gives_up_, spoils_, trouble_;  // of a thousand
    std::uint64_t pushes_of_step_;                              // one_stream: that each vote counts
    std::vector<StepEvent> under_way_;
    std::deque<StepEvent> planned_;
};

}  // namespace luwu::test
