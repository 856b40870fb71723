#include "fabric/protocol/queue_meter.h"

#include <algorithm>
#include <limits>

namespace luwu::fabric {

namespace {
constexpr Time kLeastKept = 15'000 * kMillisecond;  // and as long again
}  // namespace

void QueueMeter::observe(Time now, Time there, bool at_least) {
    auto taken = static_cast<std::int64_t>(there - base_);
    if (at_least && (!measured_ || taken < least_ || taken > least_ + kOtherClock)) return;
    if (!measured_ || taken > least_ + kOtherClock || taken < least_ - kOtherClock) {
        *this = {};
        measured_ = true;
        base_ = there;
        least_began_ = moment_began_ = now;
        return;
    }
    if (now >= least_began_ + kLeastKept) {
        least_before_ = least_;
        least_ = taken;
        least_began_ = now;
    }
    least_ = std::min(least_, taken);
    shortest_ = std::min(shortest_, taken);
    if (now < moment_began_ + kMoment) return;
    wait_ = static_cast<Time>(shortest_ - std::min(least_, least_before_));
    shortest_ = std::numeric_limits<std::int64_t>::max();
    moment_began_ = now;
}

}  // namespace luwu::fabric
