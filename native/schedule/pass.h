// The agreed order of pulls within a step, recorded from the step before: it tells what is needed next, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace luwu::schedule {

// Every worker walks through the same order at its own pace. Before the first step is recorded the pass is empty and
// predicts nothing. Pulls outside the order (evaluation) move a worker to the next place where that block occurs.
class Pass {
  public:
    Pass(std::uint32_t blocks, std::uint32_t workers) : occurrences_(blocks), positions_(workers, 0) {}

    void begin_step(std::uint32_t worker);  // the worker starts again at the front; its pulls are recorded
    void pulled(std::uint32_t worker, std::uint32_t block);
    void end_step();  // what the first worker pulled becomes the order

    // Pulls until some worker needs this block, counted from each worker's own place; nullopt: never, as far as known.
    [[nodiscard]] std::optional<std::uint64_t> next_use(std::uint32_t block) const;
    // True if some worker pulls it again before its step ends, as far as known.
    [[nodiscard]] bool used_again_in_step(std::uint32_t block) const;
    // Its first place in the order of a step; nullopt: never pulled, as far as known.
    [[nodiscard]] std::optional<std::uint64_t> first_use(std::uint32_t block) const;
    // The block that the worker will pull `ahead` pulls from now (0: the very next), across the end of the step.
    [[nodiscard]] std::optional<std::uint32_t> upcoming(std::uint32_t worker, std::uint64_t ahead) const;
    [[nodiscard]] std::uint32_t workers() const { return static_cast<std::uint32_t>(positions_.size()); }

  private:
    [[nodiscard]] std::uint64_t distance(std::uint64_t position, std::uint32_t block) const;

    std::vector<std::uint32_t> order_;
    std::vector<std::vector<std::uint64_t>> occurrences_;  // per block, ascending places in order_
    std::vector<std::uint64_t> positions_;  // per worker: place in order_ of its next pull; at the end, beyond the last
    std::vector<std::uint32_t> recording_;
    bool recording_now_ = false;
};

}  // namespace luwu::schedule
