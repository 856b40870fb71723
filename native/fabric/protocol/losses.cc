#include "fabric/protocol/losses.h"

#include <algorithm>
#include <cmath>

namespace luwu::fabric {

namespace {
constexpr double kEnough = 100;                       // packets that tell a share
constexpr double kFewLost = 4;                        // of them: nothing that shows
constexpr double kLittle = 0.01;                      // share of lost packets that nobody minds
constexpr double kDeviations = 3;                     // of a number of losses that is due to chance
constexpr double kAsMany = 0.5;                       // of a suspicion's share: the smaller window has changed nothing
constexpr int kLongestTrial = 8;                      // periods
constexpr Time kDamageLasts = 10'000 * kMillisecond;  // then it is tried anew
}  // namespace

void Losses::count(std::uint64_t arrived, std::uint64_t lost, bool used) {
    used_ = used_ || used;
    arrived_ += static_cast<double>(arrived);
    lost_ += static_cast<double>(lost);
}

bool Losses::suspicious() const {
    const double expected = damage_ * total();
    const double chance = kDeviations * std::sqrt(expected);
    return used_ && !trying() && lost_ > expected + chance + std::max(kFewLost, kLittle * total());
}

Losses::Verdict Losses::judge(Time now) {
    switch (trial_) {
        case Trial::begun:  // what was lost in this period may have been sent before the trial
            forget();
            trial_ = Trial::counting;
            periods_ = 0;
            return Verdict::none;
        case Trial::counting:
            return total() < kEnough && ++periods_ < kLongestTrial ? Verdict::none : end_trial();
        case Trial::none:
            break;
    }
    const bool stale = damage_ > kLittle && now > tried_at_ + kDamageLasts && total() >= kEnough;
    if (suspicious() || stale) return suspect(now);
    if (total() >= kEnough) damage_ += (lost_ / total() - damage_) / 8;
    if (total() >= kEnough || !used_) forget();
    return Verdict::none;
}

Losses::Verdict Losses::suspect(Time now) {
    share_ = lost_ / total();
    surely_ = std::max(0.0, lost_ - 2 * std::sqrt(lost_)) / total();
    tried_at_ = now;
    trial_ = Trial::begun;
    return Verdict::suspicion;
}

Losses::Verdict Losses::end_trial() {
    const bool enough = total() >= kEnough;
    const double share = enough ? lost_ / total() : damage_;
    damage_ = share;
    trial_ = Trial::none;
    forget();
    if (!enough) return Verdict::unknown;
    return share >= kAsMany * surely_ ? Verdict::damage : Verdict::overflow;
}

void Losses::forget() {
    arrived_ = lost_ = 0;
    used_ = false;
}

}  // namespace luwu::fabric
