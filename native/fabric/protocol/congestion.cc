#include "fabric/protocol/congestion.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fabric/protocol/queue_meter.h"

namespace luwu::fabric {

namespace {
constexpr Time kLeastLasts = 10'000 * kMillisecond;  // then the empty link is measured anew
constexpr std::int64_t kNear = kMillisecond / 2;     // as good as empty
constexpr double kLeastLeft = 0.5;  // of the window, after one suspicion: what an outage loses says nothing of a queue
constexpr double kHeavyLoss = 0.2;  // share of a period's packets: more than the damage that this is built to bear
constexpr double kBelow = 0.9;      // of what a queue had no room for: near it
constexpr double kCareful = 16;     // times slower growth near it
constexpr double kLessCareful = 0.95;   // after each period without a sign of it
constexpr double kMarkGain = 1.0 / 16;  // of a period's share of marked packets, in their average (RFC 8257)
constexpr double kUnitBytes = 22'500;   // the least window; twice that is its growth, four times that its beginning
constexpr double kFewestPackets = 4;
}  // namespace

Congestion::Congestion(std::uint32_t most, std::uint32_t packet_bytes, Time queueing)
    : most_(most),
      least_window_(std::max(kFewestPackets, std::floor(kUnitBytes / packet_bytes))),
      growth_(2 * least_window_),
      window_(4 * least_window_),
      queueing_(static_cast<std::int64_t>(queueing)) {}

void Congestion::observe(Time now, const TripTime& trip, std::uint64_t under_way, std::uint64_t arrived,
                         std::uint64_t lost, std::uint64_t marked) {
    const bool used = 2 * static_cast<double>(under_way) >= window_;
    used_ = used_ || used;
    arrived_ += static_cast<double>(arrived);
    lost_ += static_cast<double>(lost);
    ++heartbeats_;
    // Packets that were under way when the window shrank tell nothing of the smaller one; idle senders fill no queue.
    if (arrived > 0 && now >= marks_count_from_) marked_ += static_cast<double>(marked);
    losses_.count(arrived, lost, used);
    if (trip.round != 0 || trip.at_least) measure(now, trip);
    if (searching_ && after_drain_ == 0) {
        if (used) window_ = std::min(most_, window_ + static_cast<double>(arrived));
        if ((seen_ && shortest_ > queueing_) || marked_ > 0 || losses_.suspicious()) end_period(now);
    }
    if (now >= began_ + std::max(2 * smoothed_, kMoment)) end_period(now);
}

void Congestion::measure(Time now, const TripTime& trip) {
    auto above = static_cast<std::int64_t>(trip.there - least_);
    if (trip.at_least) {
        if (measured_ && after_drain_ == 0 && above > 0 && above <= kOtherClock) longest_ = std::max(longest_, above);
        return;
    }
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
    if (!seen_ && used_ && longest_ > 0) {  // nothing but heartbeats that had not arrived
        shortest_ = longest_;
        seen_ = true;
    }
    if (after_drain_ != 0) {
        if (now < drained_at_ || !seen_) return;
        least_ += static_cast<Time>(shortest_);
        least_at_ = now;
        window_ = std::exchange(after_drain_, 0);
    } else {
        const auto verdict = losses_.judge(now);
        conclude(verdict);
        average_marks();
        if (verdict == Losses::Verdict::suspicion) {
            before_trial_ = window_;
            searched_before_trial_ = std::exchange(searching_, false) && marked_ == 0;
            window_ *= std::max(kLeastLeft, kBelow * (1 - losses_.share()));
        } else if (const double left = left_by_signs(now); left < 1 || marked_ > 0) {
            shrink(left);
            if (marked_ > 0) marks_count_from_ = now + smoothed_;
        } else if (verdict == Losses::Verdict::none && used_ && arrived_ > 0 && !losses_.trying()) {
            grow();
        }
    }
    window_ = std::clamp(window_, least_window_, std::max(least_window_, most_));
    began_ = now;
    seen_ = used_ = false;
    arrived_ = lost_ = marked_ = heartbeats_ = 0;
    longest_ = 0;
}

void Congestion::conclude(Losses::Verdict verdict) {
    if (verdict == Losses::Verdict::damage || verdict == Losses::Verdict::unknown) {
        window_ = before_trial_;
        searching_ = searched_before_trial_;
    }
    if (verdict == Losses::Verdict::overflow) be_careful_near(before_trial_ * (1 - losses_.share()));
    const bool damage = verdict == Losses::Verdict::damage;
    if (damage && !searching_) be_careful_near(before_trial_);  // others may fill the same queue
}

void Congestion::be_careful_near(double window) {
    ceiling_ = window;
    care_ = kCareful;
}

void Congestion::shrink(double factor) {
    window_ *= factor;
    before_trial_ = std::min(before_trial_, window_);
    searching_ = searched_before_trial_ = false;
}

// Returns the part of the window that this period's signs of a queue leave.
double Congestion::left_by_signs(Time now) const {
    double left = 1;
    if (lost_ > 8 && lost_ > kHeavyLoss * (arrived_ + lost_)) {
        left = 0.7;
    } else if (seen_ && shortest_ > queueing_) {
        left = 1 - 0.5 * static_cast<double>(shortest_ - queueing_) / static_cast<double>(shortest_ + queueing_);
    }
    if (marked_ == 0) return left;
    return std::min(left, std::max(1 - marked_share_ / 2, std::min(1.0, needed(now) / window_)));
}

// Returns the packets that must be under way for as many to arrive as in this period: those of a round trip, and of the
// time until the next heartbeat tells of them. A queue may mark the bursts that heartbeats make, however small the
// window.
double Congestion::needed(Time now) const {
    const double period = std::max(1.0, static_cast<double>(now - began_));
    return arrived_ * (static_cast<double>(smoothed_) / period + 1 / std::max(1.0, heartbeats_));
}

// From the first mark on, which stands for all packets.
void Congestion::average_marks() {
    if (arrived_ == 0) return;
    const double share = std::min(1.0, marked_ / arrived_);
    marked_share_ = marked_share_ == 0 && share > 0 ? 1 : marked_share_ + kMarkGain * (share - marked_share_);
}

void Congestion::grow() {
    const double step = std::max(growth_, window_ / 16);
    const bool near = ceiling_ != 0 && window_ + step > kBelow * ceiling_;
    window_ += near ? std::max(step / care_, kBelow * ceiling_ - window_) : step;
    if (near) care_ = std::max(1.0, kLessCareful * care_);
}

}  // namespace luwu::fabric
