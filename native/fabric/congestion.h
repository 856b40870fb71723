// How much a node may have under way on one link: grows while the link's queues are short, shrinks when they are long.
//
// The delay of heartbeats tells the length of the queues (as in Swift and LEDBAT): the shortest of a period, because a
// busy processor delays some of them and a queue all. Loss alone does not slow a sender down until it is heavy: on the
// networks this is for, a little loss is damage, and losing much is an overflow.
#pragma once

#include <cstdint>

#include "fabric/node.h"

namespace luwu::fabric {

class Congestion {
  public:
    Congestion(std::uint32_t most, Time queueing) : most_(most), queueing_(queueing) {}

    // What the last heartbeat told: a round trip on the link (0: none measured), packets that arrived, packets lost.
    void observe(Time now, Time round_trip, std::uint64_t arrived, std::uint64_t lost);
    [[nodiscard]] std::uint64_t window() const { return static_cast<std::uint64_t>(window_); }
    [[nodiscard]] Time round_trip() const { return smoothed_; }

  private:
    void end_period(Time now);

    double window_ = 64;
    double most_;
    Time queueing_;
    Time least_ = 0;  // round trip of an empty link, lately
    Time least_at_ = 0;
    Time smoothed_ = 0;
    bool searching_ = true;  // until the first sign of a queue: doubles each round trip
    // Of the present period:
    Time began_ = 0;
    Time shortest_ = 0;
    double arrived_ = 0;
    double lost_ = 0;
};

}  // namespace luwu::fabric
