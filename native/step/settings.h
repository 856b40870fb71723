// The settings that a worker brings when it begins a step. All workers of a step must bring the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/optimizer.h"
#include "store/records.h"

namespace luwu::step {

// The steps whose record is written: after a crash the store is at the last of them.
struct CommitPoints {
    std::uint64_t every = 1;          // multiples of this; 1: every step; 0: none because of its number
    std::uint64_t for_snapshots = 0;  // and of this; 0: none

    [[nodiscard]] bool is_each_step() const { return every == 1; }
    [[nodiscard]] bool has(std::uint64_t step) const {
        return (every > 0 && step % every == 0) || (for_snapshots > 0 && step % for_snapshots == 0);
    }
};

// The blocks that are updated while gradients still come, where a step is answered before it is on the disk: the
// gradients of the others are kept, and their updates follow under the next forward.
struct Tail {
    // Chunks that are updated at the same time; 0: a step is answered when it is on the disk.
    std::uint32_t at_once = 0;
    // Chunks whose gradients memory can keep. Where all gradients are kept anyway, it has room for all.
    std::uint32_t room = 0;

    [[nodiscard]] bool follows() const { return at_once > 0; }
};

using GroupSettings = kernels::HyperParameters;  // of one parameter group for one step

// Treatment of a step's gradients before they are used.
struct GradientSettings {
    std::optional<double> max_norm = {};              // their global norm is clipped to it
    std::optional<store::LossScale> loss_scale = {};  // they are divided by it, which comes before anything else

    bool operator==(const GradientSettings&) const = default;
};

struct StepSettings {
    std::vector<GroupSettings> groups;
    GradientSettings gradient;

    bool operator==(const StepSettings&) const = default;
};

}  // namespace luwu::step
