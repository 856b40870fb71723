// The policy of clipping by the global norm, which the machine asks: whether gradients are kept, whether a step is
// updated before its norm is known, and by what its gradients are multiplied. docs/decisions/0007-clipping.md says why.
// Gradients are also kept, and no step is updated before it is decided, where not every step is on the disk: then there
// is no version that an update could be taken back to. docs/decisions/0026-commit-points.md
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "store/error.h"

namespace luwu::step {

struct Clipped {
    bool clips = false;   // the norm exceeds the limit
    double factor = 1.0;  // of torch.nn.utils.clip_grad_norm_
};

class Clipping {
  public:
    // `may_speculate`: a step that was updated can be taken back. One server of several cannot go back once another has
    // written the record of the step before. `always_keeps`: also without a limit.
    Clipping(bool may_speculate, bool always_keeps) : may_speculate_(may_speculate), always_keeps_(always_keeps) {}

    // The first worker of a step brings a limit or none. The run's first step decides for all: an error for a later one
    // that differs.
    [[nodiscard]] std::optional<Error> begin_step(bool limited) {
        if (limits_ && *limits_ != limited) {
            return Error(ErrorKind::order, std::string("a step began ") + (limited ? "with" : "without") +
                                               " max_grad_norm and the run's first one " +
                                               (limited ? "without" : "with") + "; give every step one or none");
        }
        limits_ = limited;
        speculates_ = limited && last_did_not_clip_ && may_speculate_;  // what one step did the next probably does, too
        return std::nullopt;
    }
    [[nodiscard]] bool chosen() const { return limits_.has_value(); }
    [[nodiscard]] bool limits() const { return limits_.value_or(false); }
    [[nodiscard]] bool keeps_gradients() const { return limits() || always_keeps_; }
    // This step is updated as if it were not clipped.
    [[nodiscard]] bool speculates() const { return speculates_; }

    [[nodiscard]] static Clipped decide(double squares, std::optional<double> max_norm) {
        if (!max_norm) return {};
        const double factor = std::min(1.0, *max_norm / (std::sqrt(squares) + 1e-6));
        return {factor < 1.0, factor};
    }
    void settled(bool clips) { last_did_not_clip_ = !clips; }
    // The next step is expected to be updated before its norm is known.
    [[nodiscard]] bool speculates_next() const { return last_did_not_clip_ && may_speculate_; }

  private:
    bool may_speculate_;
    bool always_keeps_;
    std::optional<bool> limits_;  // as the run's first step had it
    bool speculates_ = false;
    bool last_did_not_clip_ = false;  // of the steps that settled
};

}  // namespace luwu::step
