// The two ends of a reliable stream. Packets are numbered; both ends hold a window of bounded size over the numbers.
// The receiver tells what it has (`ack`, and the holes after it); the sender sends again what is missing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "fabric/protocol/node.h"
#include "fabric/protocol/wire.h"

namespace luwu::fabric {

// Appends a hole of length 0 at `until` if the stream's last hole ends before: what is between them has arrived. It
// needs room, and nothing else of the stream after it.
void close_holes(std::uint32_t stream, std::uint64_t until, Heartbeat& heartbeat);

// Packets that have arrived. Counts each once.
class ReceiveWindow {
  public:
    explicit ReceiveWindow(std::uint32_t slots) : arrived_(slots, false) {}

    enum class Verdict : std::uint8_t { fresh, duplicate, outside };
    [[nodiscard]] Verdict look(std::uint64_t sequence) const;
    void mark(std::uint64_t sequence);                        // which look() called fresh
    [[nodiscard]] std::uint64_t ack() const { return ack_; }  // all below have arrived
    [[nodiscard]] std::uint64_t end() const { return ack_ + arrived_.size(); }
    [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(arrived_.size()); }
    // Appends what is missing below `next`, which the sender says it has sent, while there is room, and how far packets
    // have arrived (see close_holes).
    void report_holes(luwu_stream stream, std::uint64_t next, Heartbeat& heartbeat) const;
    void skip_to(std::uint64_t sequence);  // all below count as arrived
    void reset();

  private:
    [[nodiscard]] bool has(std::uint64_t sequence) const { return arrived_[sequence % arrived_.size()]; }

    std::uint64_t ack_ = 0;
    std::uint64_t highest_ = 0;  // one past the highest that arrived
    std::vector<bool> arrived_;
};

// Packets that were sent, their times, and the next ones to send.
class SendWindow {
  public:
    explicit SendWindow(std::uint32_t slots) : sent_at_(slots, 0), queued_(slots, false) {}

    // The receiver's state. `ack` and `credit` never go back; a heartbeat that is late changes nothing.
    void take_state(std::uint64_t ack, std::uint64_t credit, Time now);
    // Missing at the receiver: sent again unless that was done less than `min_age` ago. Returns how many.
    std::uint64_t take_hole(const Hole& hole, Time now, Time min_age);
    // Sends again from `ack` if it has not moved for a while: one packet, which the answer may have been slow to, then
    // twice as many each time, at most `most`; the while doubles, too.
    std::uint64_t resend_if_stalled(Time now, Time timeout, Time longest_timeout, std::uint64_t most);
    // The next packet to send, of those below `ready`: one that is missing first, then a new one.
    [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t ready, Time now);
    [[nodiscard]] bool has_work(std::uint64_t ready) const;
    [[nodiscard]] bool has_missing() const { return !missing_.empty(); }
    [[nodiscard]] bool outstanding() const { return next_ > ack_; }
    [[nodiscard]] std::uint64_t next() const { return next_; }
    [[nodiscard]] std::uint64_t ack() const { return ack_; }
    [[nodiscard]] std::uint64_t resent() const { return resent_; }
    // When the last packet below `end` was sent; 0 where it is acknowledged.
    [[nodiscard]] Time sent_before(std::uint64_t end) const {
        return end > ack_ && end <= next_ ? sent_at_[(end - 1) % sent_at_.size()] : 0;
    }
    [[nodiscard]] Time answered_in() const { return answered_in_; }  // from sending a packet to hearing its ack
    void reset();                                                    // of a new epoch

  private:
    [[nodiscard]] std::uint64_t limit(std::uint64_t ready) const;
    [[nodiscard]] Time& sent_at(std::uint64_t sequence) { return sent_at_[sequence % sent_at_.size()]; }

    std::uint64_t next_ = 0;
    std::uint64_t ack_ = 0;
    std::uint64_t credit_ = 0;
    std::vector<Time> sent_at_;
    std::vector<bool> queued_;  // in missing_
    std::deque<std::uint64_t> missing_;
    Time moved_at_ = 0;  // when ack last moved, or all was acknowledged before something was sent
    Time patience_ = 0;  // of the present stall
    std::uint64_t stall_burst_ = 1;
    Time answered_in_ = 0;
    std::uint64_t resent_ = 0;
};

}  // namespace luwu::fabric
