#include "fabric/congestion.h"

#include <algorithm>

namespace luwu::fabric {

namespace {
constexpr Time kSecond = 1'000'000'000;
constexpr Time kLeastLasts = 10 * kSecond;  // then the empty link's round trip is measured anew
constexpr Time kShortestPeriod = 1'000'000;
constexpr double kHeavyLoss = 0.2;  // share of a period's packets: more than the damage that this is built to bear
constexpr double kLeastWindow = 16;
constexpr double kGrowth = 32;  // packets a period
}  // namespace

void Congestion::observe(Time now, Time round_trip, std::uint64_t arrived, std::uint64_t lost) {
    arrived_ += static_cast<double>(arrived);
    lost_ += static_cast<double>(lost);
    if (round_trip != 0) {
        if (least_ == 0 || round_trip < least_ || now > least_at_ + kLeastLasts) {
            least_ = round_trip;
            least_at_ = now;
        }
        smoothed_ = smoothed_ == 0 ? round_trip : (7 * smoothed_ + round_trip) / 8;
        if (round_trip > least_ + queueing_) {
            const double excess = static_cast<double>(round_trip - least_ - queueing_);
            shrink(now, 1.0 - std::min(0.5, 0.5 * excess / static_cast<double>(round_trip)));
        }
    }
    if (searching_) window_ = std::min(most_, window_ + static_cast<double>(arrived));
    if (now < period_ + std::max(smoothed_, kShortestPeriod)) return;
    if (lost_ > 8 && lost_ > kHeavyLoss * (arrived_ + lost_)) {
        shrink(now, 0.7);
    } else if (!searching_ && arrived_ > 0) {
        window_ = std::min(most_, window_ + kGrowth);
    }
    arrived_ = lost_ = 0;
    period_ = now;
}

void Congestion::shrink(Time now, double factor) {
    searching_ = false;
    if (now < shrunk_at_ + std::max(smoothed_, kShortestPeriod)) return;  // its effect is not seen yet
    window_ = std::max(kLeastWindow, window_ * factor);
    shrunk_at_ = now;
}

}  // namespace luwu::fabric
