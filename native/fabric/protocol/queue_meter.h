// Time that packets wait on the way to a link's other end, beyond the time of an empty way.
//
// Measured as in fabric/protocol/congestion.h, by heartbeats: the shortest of a moment counts, because a busy processor
// delays some heartbeats and a queue delays all. The shortest of the last half minute counts as an empty way: whoever
// fills it empties it every 10 s.
#pragma once

#include <cstdint>

#include "fabric/protocol/node.h"

namespace luwu::fabric {

inline constexpr Time kMoment = 4 * kMillisecond;  // some heartbeats long
inline constexpr std::int64_t kOtherClock =
    1'000'000'000;  // no queue is so long: the other end started again elsewhere

class QueueMeter {
  public:
    // `there`: what one heartbeat took, by the other end's clock less ours, which may be any number; or what one that
    // has not arrived takes at least.
    void observe(Time now, Time there, bool at_least = false);
    [[nodiscard]] Time wait() const { return wait_; }

  private:
    bool measured_ = false;
    Time base_ = 0;  // the others are relative to it
    std::int64_t least_ = 0;
    std::int64_t least_before_ = 0;
    Time least_began_ = 0;
    std::int64_t shortest_ = 0;  // of the present moment
    Time moment_began_ = 0;
    Time wait_ = 0;
};

}  // namespace luwu::fabric
