// Tells packets that a queue had no room for from packets that are damaged on the way.
//
// A full queue loses fewer packets when the sender has fewer under way, and damage does not depend on that. So a share
// of lost packets that is larger than what damage explains is a suspicion: the sender makes its window smaller for a
// while, as a trial. Where as many are lost then, it was damage, and the window is as before.
#pragma once

#include <cstdint>

#include "fabric/protocol/node.h"

namespace luwu::fabric {

class Losses {
  public:
    enum class Verdict : std::uint8_t {
        none,
        suspicion,  // make the window smaller; `share` of the packets was lost
        unknown,    // the trial's end, in which too little was sent: go back to the window before
        damage,     // the trial's end: go back to the window before
        overflow,   // the trial's end: the window before was too large
    };

    // `used`: as much was under way as may be, or nearly; else a queue has room.
    void count(std::uint64_t arrived, std::uint64_t lost, bool used);
    // More packets were lost than damage explains, and no trial is under way.
    [[nodiscard]] bool suspicious() const;
    // At the end of a period of two round trips.
    [[nodiscard]] Verdict judge(Time now);
    [[nodiscard]] bool trying() const { return trial_ != Trial::none; }
    [[nodiscard]] double share() const { return share_; }  // of the last suspicion

  private:
    enum class Trial : std::uint8_t { none, begun, counting };

    [[nodiscard]] double total() const { return arrived_ + lost_; }
    [[nodiscard]] Verdict suspect(Time now);
    [[nodiscard]] Verdict end_trial();
    void forget();

    double arrived_ = 0;
    double lost_ = 0;
    double damage_ = 0;  // the share that is lost whatever the window
    double share_ = 0;
    double surely_ = 0;  // the least share that the losses of the last suspicion are likely to stand for
    bool used_ = false;
    Time tried_at_ = 0;
    Trial trial_ = Trial::none;
    int periods_ = 0;  // of the trial
};

}  // namespace luwu::fabric
