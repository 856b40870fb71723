#include "fabric/protocol/congestion.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fabric/protocol/queue_meter.h"

namespace luwu::fabric {

namespace {
constexpr Time kLeastLasts = 10'000 * kMillisecond;  // then the empty link is measured anew
constexpr std::int64_t kNear = kMillisecond / 2;     // as good as empty
constexpr double kHeavyLoss = 0.2;     // share of a period's packets: more than the damage that this is built to bear
constexpr double kUnitBytes = 22'500;  // the least window; twice that is its growth, four times that its beginning
constexpr double kFewestPackets = 4;
}  // namespace

Congestion::Congestion(std::uint32_t most, std::uint32_t packet_bytes, Time queueing)
    : most_(most),
      least_window_(std::max(kFewestPackets, std::floor(kUnitBytes / packet_bytes))),
      growth_(2 * least_window_),
      window_(4 * least_window_),
      queueing_(static_cast<std::int64_t>(queueing)) {}

void Congestion::observe(Time now, const TripTime& trip, std::uint64_t under_way, std::uint64_t arrived,
                         std::uint64_t lost) {
    const bool used = 2 * static_cast<double>(under_way) >= window_;
    used_ = used_ || used;
    arrived_ += static_cast<double>(arrived);
    lost_ += static_cast<double>(lost);
    if (trip.round != 0) measure(now, trip);
    if (searching_ && after_drain_ == 0) {
        if (used) window_ = std::min(most_, window_ + static_cast<double>(arrived));
        if (seen_ && shortest_ > queueing_) end_period(now);
    }
    if (now >= began_ + std::max(2 * smoothed_, kMoment)) end_period(now);
}

void Congestion::measure(Time now, const TripTime& trip) {
    auto above = static_cast<std::int64_t>(trip.there - least_);
    if (!measured_ || above <= 0 || above > kOtherClock) {
        least_ = trip.there;
        above = 0;
    }
    if (!measured_ || above <= kNear) least_at_ = now;
    measured_ = true;
    smoothed_ = smoothed_ == 0 ? trip.round : (7 * smoothed_ + trip.round) / 8;
    // While the window doubles, the first sign of a queue must do.
    shortest_ = seen_ && !(searching_ && above > queueing_) ? std::min(shortest_, above) : above;
    seen_ = true;
    if (now > least_at_ + kLeastLasts && after_drain_ == 0) begin_draining(now);
}

// A link that was busy all the time has not shown for long how fast it is when it is empty, and clocks drift.
void Congestion::begin_draining(Time now) {
    after_drain_ = window_;
    window_ = least_window_;
    drained_at_ = now + 2 * smoothed_;
    began_ = now;
    seen_ = false;
}

void Congestion::end_period(Time now) {
    if (after_drain_ != 0) {
        if (now < drained_at_ || !seen_) return;
        least_ += static_cast<Time>(shortest_);
        least_at_ = now;
        window_ = std::exchange(after_drain_, 0);
    } else if (lost_ > 8 && lost_ > kHeavyLoss * (arrived_ + lost_)) {
        window_ *= 0.7;
        searching_ = false;
    } else if (seen_ && shortest_ > queueing_) {
        const double excess = static_cast<double>(shortest_ - queueing_) / static_cast<double>(shortest_ + queueing_);
        window_ *= 1.0 - 0.5 * excess;
        searching_ = false;
    } else if (used_ && arrived_ > 0) {
        window_ += std::max(growth_, window_ / 16);
    }
    window_ = std::clamp(window_, least_window_, std::max(least_window_, most_));
    began_ = now;
    seen_ = used_ = false;
    arrived_ = lost_ = 0;
}

}  // namespace luwu::fabric
