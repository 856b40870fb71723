#include "fabric/congestion.h"

#include <algorithm>

namespace luwu::fabric {

namespace {
constexpr Time kMillisecond = 1'000'000;
constexpr Time kLeastLasts = 10'000 * kMillisecond;  // then the empty link's round trip is measured anew
constexpr Time kShortestPeriod = 4 * kMillisecond;   // some heartbeats long
constexpr double kHeavyLoss = 0.2;  // share of a period's packets: more than the damage that this is built to bear
constexpr double kLeastWindow = 16;
constexpr double kGrowth = 32;  // packets a period, or a sixteenth of the window
}  // namespace

void Congestion::observe(Time now, Time round_trip, std::uint64_t arrived, std::uint64_t lost) {
    arrived_ += static_cast<double>(arrived);
    lost_ += static_cast<double>(lost);
    if (searching_) window_ = std::min(most_, window_ + static_cast<double>(arrived));
    if (round_trip != 0) {
        if (least_ == 0 || round_trip < least_ || now > least_at_ + kLeastLasts) {
            least_ = round_trip;
            least_at_ = now;
        }
        smoothed_ = smoothed_ == 0 ? round_trip : (7 * smoothed_ + round_trip) / 8;
        shortest_ = shortest_ == 0 ? round_trip : std::min(shortest_, round_trip);
    }
    if (now >= began_ + std::max(2 * smoothed_, kShortestPeriod)) end_period(now);
}

void Congestion::end_period(Time now) {
    const bool overflows = lost_ > 8 && lost_ > kHeavyLoss * (arrived_ + lost_);
    if (overflows) {
        window_ *= 0.7;
        searching_ = false;
    } else if (shortest_ > least_ + queueing_) {
        const double excess = static_cast<double>(shortest_ - least_ - queueing_) / static_cast<double>(shortest_);
        window_ *= 1.0 - 0.5 * excess;
        searching_ = false;
    } else if (arrived_ > 0) {
        window_ += std::max(kGrowth, window_ / 16);
    }
    window_ = std::clamp(window_, kLeastWindow, most_);
    began_ = now;
    shortest_ = 0;
    arrived_ = lost_ = 0;
}

}  // namespace luwu::fabric
