#include "fabric/protocol/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace luwu::fabric {

namespace {
constexpr std::size_t kFixedBytes = offsetof(Heartbeat, holes);
constexpr std::uint32_t kSteady = 8;
constexpr Time kMicrosecond = 1'000;
constexpr std::size_t kUnanswered = 64;     // heartbeats whose times are kept
constexpr std::size_t kManyUnanswered = 3;  // more than damage loses in a row

bool parse(std::span<const std::byte> payload, Heartbeat& heartbeat) {
    heartbeat = {};
    if (payload.size() < kFixedBytes || payload.size() > sizeof(Heartbeat)) return false;
    std::memcpy(&heartbeat, payload.data(), payload.size());
    return heartbeat.holes_used <= LUWU_MOST_HOLES &&
           payload.size() == kFixedBytes + heartbeat.holes_used * sizeof(Hole);
}

// Clocks and queues apart.
bool same_state(const Heartbeat& left, const Heartbeat& right) {
    constexpr std::size_t kState = offsetof(Heartbeat, below) - offsetof(Heartbeat, next);
    return std::memcmp(left.next, right.next, kState) == 0 &&
           std::memcmp(left.holes, right.holes, sizeof left.holes) == 0;
}
}  // namespace

Link::Link(const Seal& seal, const NetworkTiming& timing, Address other, std::uint16_t sender,
           std::uint32_t incarnation, std::uint32_t most_under_way, std::uint32_t packet_bytes)
    : seal_(seal),
      timing_(timing),
      other_(other),
      sender_(sender),
      congestion_(most_under_way, packet_bytes, timing.queueing),
      number_sent_(std::uint64_t{incarnation} << kNumberBits) {}

bool Link::take(const Packet& packet, Time now, PacketDrops& drops) {
    Heartbeat heartbeat;
    if (!parse(packet.payload, heartbeat)) {
        ++drops[static_cast<std::size_t>(PacketDrop::form)];
        return false;
    }
    // A sender that was started again has a higher incarnation, so its heartbeats are not taken for replays.
    if (packet.head.sequence <= number_heard_) {
        ++drops[static_cast<std::size_t>(PacketDrop::replayed)];
        return false;
    }
    news_ = !heard() || heartbeat.holes_used > 0 || !same_state(heartbeat, theirs_);
    // The first one may tell of packets of an earlier holder of this place, and a later one come from another child.
    new_marks_ = heard() && heartbeat.marked > theirs_.marked ? heartbeat.marked - theirs_.marked : 0;
    number_heard_ = packet.head.sequence;
    theirs_ = heartbeat;
    look_behind_holes();
    heard_at_ = now;
    ++heartbeats_heard_;
    trip_ = {};
    const Time echo = heartbeat.echo < began_ ? 0 : heartbeat.echo;
    const bool new_echo = echo != std::exchange(echo_, echo);  // a repeated echo tells only of the way back
    while (!unanswered_.empty() && unanswered_.front() <= echo) unanswered_.pop_front();
    if (new_echo && echo != 0 && echo <= now && heartbeat.held <= now - echo) {
        trip_.round = std::max<Time>(1, now - echo - heartbeat.held);
        trip_.there = heartbeat.time - heartbeat.held - echo + Time{heartbeat.below} * kMicrosecond;
        meter_.observe(now, trip_.there);
    } else if (echo != 0 && unanswered_.size() >= kManyUnanswered && pause_ == timing_.heartbeat) {
        trip_ = {.there = heartbeat.time - unanswered_.front(), .at_least = true};
        meter_.observe(now, trip_.there, trip_.at_least);
    }
    return true;
}

// Between the first and the last hole of each stream.
void Link::look_behind_holes() {
    behind_holes_ = {};
    farthest_ = {};
    std::array<std::uint64_t, LUWU_STREAMS> ends{};
    for (const Hole& hole : std::span(theirs_.holes, theirs_.holes_used)) {
        if (hole.stream >= LUWU_STREAMS || hole.first + hole.length < hole.first) continue;
        std::uint64_t& end = ends[hole.stream];
        if (end != 0 && hole.first > end) {
            behind_holes_[hole.stream] += hole.first - end;
            farthest_[hole.stream] = hole.first;
        }
        end = std::max(end, hole.first + hole.length);
    }
}

void Link::changed() {
    quiet_ = 0;
    if (sent_at_ != 0) due_ = std::min(due_, sent_at_ + timing_.heartbeat);
}

void Link::send_heartbeat(Heartbeat& ours, std::uint32_t epoch, Time now, Outbox& outbox) {
    ours.time = now;
    ours.echo = theirs_.time;
    ours.held = heard() ? now - heard_at_ : 0;
    ours.marked += marks_;
    began_ = std::min(began_, now);
    Head head{};
    head.kind = LUWU_HEARTBEAT;
    head.epoch = epoch;
    head.sender = sender_;
    head.sequence = ++number_sent_;
    const std::size_t bytes = kFixedBytes + ours.holes_used * sizeof(Hole);
    std::byte* body = outbox.room(bytes);
    std::memcpy(body, &ours, bytes);
    seal_.close(head, {body, bytes});
    outbox.send(other_, std::as_bytes(std::span(&head, 1)), {body, bytes});
    // Under load they come at a steady rate, whatever the packets do. The last news are told several times, then ever
    // more slowly: the first heartbeats that have them may be lost.
    pause_ = quiet_ < kSteady ? timing_.heartbeat : std::min(2 * pause_, timing_.idle_heartbeat);
    const bool in_time = sent_at_ != 0 && now - due_ < pause_;  // a little late does not make the next one late
    due_ = (in_time ? due_ : now) + pause_;
    sent_at_ = now;
    unanswered_.push_back(now);
    if (unanswered_.size() > kUnanswered) unanswered_.pop_front();
    ++quiet_;
    ++heartbeats_sent_;
}

Time Link::resend_age(Time now, Time arrived) const {
    const Time round_trip = congestion_.round_trip();
    const Time before = arrived > 0 ? arrived - 1 : 0;  // packets of one turn have one time
    return std::max({timing_.heartbeat, round_trip + round_trip / 2, now - std::min(now, std::max(echo_, before))});
}

void Link::reset() {
    theirs_ = {};
    behind_holes_ = farthest_ = {};
    unanswered_.clear();
    number_heard_ = 0;
    marks_ = 0;
    changed();
}

}  // namespace luwu::fabric
