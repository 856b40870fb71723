// An end of a link between two participants: heartbeats there and back, and their news.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>

#include "fabric/protocol/congestion.h"
#include "fabric/protocol/packet.h"
#include "fabric/protocol/queue_meter.h"
#include "fabric/protocol/wiring.h"

namespace luwu::fabric {

class Link {
  public:
    // `sender` is what this end writes into its packets: its number among the other's children, or LUWU_FROM_PARENT.
    // `incarnation` is larger than that of every earlier link in the same place (see Wiring).
    Link(const Seal& seal, const NetworkTiming& timing, Address other, std::uint16_t sender, std::uint32_t incarnation,
         std::uint32_t most_under_way, std::uint32_t packet_bytes);

    [[nodiscard]] const Address& other() const { return other_; }
    [[nodiscard]] std::uint16_t sender() const { return sender_; }
    // Takes a heartbeat of the other end; false and counted if it is malformed or older than the last.
    [[nodiscard]] bool take(const Packet& packet, Time now, PacketDrops& drops);
    [[nodiscard]] bool news() const { return news_; }  // the last one said something new, or of something missing
    [[nodiscard]] bool heard() const { return number_heard_ != 0; }  // from the other end, in this epoch
    [[nodiscard]] const Heartbeat& theirs() const { return theirs_; }
    // Number of packets of a stream sent by this end that have arrived there, as if without a gap: packets behind a
    // hole count too.
    [[nodiscard]] std::uint64_t arrived(luwu_stream stream) const {
        return std::max(theirs_.heard[stream], theirs_.ack[stream]) + behind_holes_[stream];
    }
    // One past the last packet of a stream sent by this end that is known to have arrived there behind a hole; 0: none.
    [[nodiscard]] std::uint64_t farthest(luwu_stream stream) const { return farthest_[stream]; }
    [[nodiscard]] Time heard_at() const { return heard_at_; }
    // Time that packets wait on the way there, and from there on the worst way down.
    [[nodiscard]] Time wait() const { return meter_.wait(); }

    void changed();  // the next heartbeat has news
    [[nodiscard]] Time heartbeat_at() const { return due_; }
    void send_heartbeat(Heartbeat& ours, std::uint32_t epoch, Time now, Outbox& outbox);

    // The sender's side of flow control: what was under way before the last heartbeat and is now, what was lost, and,
    // where the packets go further than this link, how long their acknowledgement takes.
    void observe(Time now, std::uint64_t before, std::uint64_t after, std::uint64_t lost, Time answered_in = 0) {
        if (trip_.round != 0) trip_.round = std::max(trip_.round, answered_in);
        congestion_.observe(now, trip_, before, before - std::min(before, after), lost, new_marks_);
    }
    void count_mark() { ++marks_; }  // of a packet of the other end
    [[nodiscard]] bool counts_marks() const { return heard() && theirs_.counts_marks != 0; }  // the other end
    [[nodiscard]] std::uint64_t window() const { return congestion_.window(); }
    // The least age of a missing packet before it is sent again: a younger one, or its acknowledgement, may be under
    // way. So may any that was sent after the last heartbeat that has arrived, and not before `arrived`, when a packet
    // that has arrived was sent.
    [[nodiscard]] Time resend_age(Time now, Time arrived = 0) const;

    void reset();  // of a new epoch: what the other end said is of the past
    [[nodiscard]] std::uint64_t heartbeats_sent() const { return heartbeats_sent_; }
    [[nodiscard]] std::uint64_t heartbeats_heard() const { return heartbeats_heard_; }

  private:
    void look_behind_holes();

    const Seal& seal_;
    NetworkTiming timing_;
    Address other_;
    std::uint16_t sender_;
    Heartbeat theirs_{};
    std::array<std::uint64_t, LUWU_STREAMS> behind_holes_{};
    std::array<std::uint64_t, LUWU_STREAMS> farthest_{};
    std::uint64_t number_heard_ = 0;
    Time heard_at_ = 0;
    bool news_ = false;
    Time echo_ = 0;                // of our heartbeats, the last that the other end has heard
    std::deque<Time> unanswered_;  // when our heartbeats after that one were sent
    TripTime trip_;                // that this heartbeat measured
    std::uint32_t marks_ = 0;      // packets of the other end that arrived marked
    std::uint32_t new_marks_ = 0;  // packets of this end that arrived marked, since the heartbeat before
    Congestion congestion_;
    QueueMeter meter_;
    Time began_ = std::numeric_limits<Time>::max();  // time of the first heartbeat; earlier echoes do not count
    Time sent_at_ = 0;
    Time due_ = 0;             // the next heartbeat
    Time pause_ = 0;           // that it follows the last one by
    std::uint32_t quiet_ = 0;  // heartbeats in a row without news
    std::uint64_t number_sent_;
    std::uint64_t heartbeats_sent_ = 0;
    std::uint64_t heartbeats_heard_ = 0;
};

}  // namespace luwu::fabric
