// The limit on a node's packets under way on one link: it grows while the link's queues are short, and shrinks when
// they are long.
//
// The time that heartbeats take to the other end tells the length of the queues (as in Swift and LEDBAT). The shortest
// of a period counts, because a busy processor delays some heartbeats and a queue delays all. Only the way there
// counts, so that traffic back at the same time slows nobody down. The two ends' clocks need not agree for that,
// because only the excess over the shortest time is used. Loss alone does not slow a sender down until it is heavy: on
// the networks that this is for, a little loss is damage, and a large loss is an overflow.
#pragma once

#include <cstdint>

#include "fabric/protocol/node.h"

namespace luwu::fabric {

// Time of one of our heartbeats that the other end has answered.
struct TripTime {
    Time round = 0;  // 0: nothing was measured
    Time there = 0;  // by the other end's clock less ours, which may be any number
};

class Congestion {
  public:
    Congestion(std::uint32_t most, std::uint32_t packet_bytes, Time queueing);

    // Takes the news of the last heartbeat: its trip, packets under way before it, those of them that arrived, packets
    // lost.
    void observe(Time now, const TripTime& trip, std::uint64_t under_way, std::uint64_t arrived, std::uint64_t lost);
    [[nodiscard]] std::uint64_t window() const { return static_cast<std::uint64_t>(window_); }
    [[nodiscard]] Time round_trip() const { return smoothed_; }

  private:
    void measure(Time now, const TripTime& trip);
    void begin_draining(Time now);
    void end_period(Time now);

    double most_;
    double least_window_;
    double growth_;  // a period; or a sixteenth of the window
    double window_;
    std::int64_t queueing_;
    bool measured_ = false;
    Time least_ = 0;  // way there over an empty link, lately
    Time least_at_ = 0;
    Time smoothed_ = 0;
    bool searching_ = true;   // until the first sign of a queue: doubles each round trip
    double after_drain_ = 0;  // the window to return to; 0: the link is not being drained
    Time drained_at_ = 0;
    // State of the present period:
    Time began_ = 0;
    bool seen_ = false;
    std::int64_t shortest_ = 0;  // above the least
    double arrived_ = 0;
    bool used_ = false;  // half of the window at least: else it shows nothing that more would do no harm
    double lost_ = 0;
};

}  // namespace luwu::fabric
