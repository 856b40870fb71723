// The limit on a node's packets under way on one link: it grows while the link's queues are short, and shrinks when
// they are long.
//
// The time that heartbeats take to the other end tells the length of the queues (as in Swift and LEDBAT). The shortest
// of a period counts, because a busy processor delays some heartbeats and a queue delays all. Only the way there
// counts, so that traffic back at the same time slows nobody down. The two ends' clocks need not agree for that,
// because only the excess over the shortest time is used.
//
// A queue that is too short to show in these times overflows instead. Packets that it loses shrink the window, and
// damaged ones do not (fabric/protocol/losses.h). From then on the window grows slowly near the size that was too
// large.
//
// A queue that marks packets instead says so before it overflows: the window shrinks by half the share of packets that
// are marked, which is averaged over periods (as in DCTCP, RFC 8257), but not below what arrives.
#pragma once

#include <cstdint>

#include "fabric/protocol/losses.h"
#include "fabric/protocol/node.h"

namespace luwu::fabric {

// Time of one of our heartbeats that the other end has answered.
struct TripTime {
    Time round = 0;  // 0: nothing was measured
    Time there = 0;  // by the other end's clock less ours, which may be any number
    // It has not arrived yet: it takes `there` at least, and `round` is not known.
    bool at_least = false;
};

class Congestion {
  public:
    Congestion(std::uint32_t most, std::uint32_t packet_bytes, Time queueing);

    // Takes the news of the last heartbeat: its trip, packets under way before it, those of them that arrived, packets
    // lost, packets marked.
    void observe(Time now, const TripTime& trip, std::uint64_t under_way, std::uint64_t arrived, std::uint64_t lost,
                 std::uint64_t marked = 0);
    [[nodiscard]] std::uint64_t window() const { return static_cast<std::uint64_t>(window_); }
    [[nodiscard]] Time round_trip() const { return smoothed_; }

  private:
    void measure(Time now, const TripTime& trip);
    void begin_draining(Time now);
    void end_period(Time now);
    void conclude(Losses::Verdict verdict);
    void be_careful_near(double window);
    void shrink(double factor);
    [[nodiscard]] double left_by_signs(Time now) const;
    [[nodiscard]] double needed(Time now) const;
    void average_marks();
    void grow();

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
    std::int64_t longest_ = 0;   // the same of a heartbeat that had not arrived; 0: none
    double arrived_ = 0;
    bool used_ = false;  // half of the window at least: else it shows nothing that more would do no harm
    double lost_ = 0;
    double heartbeats_ = 0;
    double marked_ = 0;
    Time marks_count_from_ = 0;
    double marked_share_ = 0;  // of packets, averaged over periods; 0: no packet has been marked yet
    Losses losses_;
    double before_trial_ = 0;  // the window
    bool searched_before_trial_ = false;
    double ceiling_ = 0;  // a window that was too large for a queue; 0: none is known
    double care_ = 1;     // near it, growth is this many times slower
};

}  // namespace luwu::fabric
