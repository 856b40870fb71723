// The updates of a clipped step that was answered: they follow in the order in which the next pass pulls.
// docs/decisions/0007-clipping.md says why.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "pipeline/shared.h"

namespace luwu::pipeline {

class OwedUpdates {
  public:
    explicit OwedUpdates(Shared& shared) : shared_(shared) {}

    void settle(const step::Settle& action);
    // The step was committed. `arrivals`: its blocks, in the order in which their last gradients came.
    void end_step(const std::vector<std::uint32_t>& arrivals);
    void hurry(std::uint32_t block);  // somebody waits for the block
    // Starts updates while the window has places. While workers pull, updates do not run so far ahead that blocks would
    // be read twice.
    void start_due();

    [[nodiscard]] float scale() const { return scale_; }  // of the kept gradients
    [[nodiscard]] const std::vector<GroupSettings>& groups() const { return groups_; }
    [[nodiscard]] const std::vector<std::uint32_t>& order() const { return order_; }
    // All their states were asked for: those read ahead from now on are the next step's.
    [[nodiscard]] bool reads_on() const { return shared_.step().owed && reads_on_; }
    // Returns the expected order of the next step's updates, once, when the last of these has begun.
    [[nodiscard]] std::optional<std::vector<std::uint32_t>> order_after();

  private:
    [[nodiscard]] std::vector<std::uint32_t> order_of_next_pass(const std::vector<std::uint32_t>& arrivals);
    [[nodiscard]] bool start(std::uint32_t block, bool at_any_price);

    Shared& shared_;
    std::deque<std::uint32_t> due_;  // blocks whose updates have not begun
    std::vector<std::uint32_t> order_;
    std::vector<std::uint32_t> order_after_;
    std::vector<GroupSettings> groups_;
    float scale_ = 1.0F;
    bool reads_on_ = false;
};

}  // namespace luwu::pipeline
