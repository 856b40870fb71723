// The settings that a worker brings when it begins a step. All workers of a step must bring the same.
#pragma once

#include <optional>
#include <vector>

#include "kernels/optimizer.h"
#include "store/records.h"

namespace luwu::step {

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
