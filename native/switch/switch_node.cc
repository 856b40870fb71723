#include "switch/switch_node.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "store/error.h"
#include "switch/slots.h"
#include "switch/xdp_layout.h"

namespace luwu::switching {

namespace {

const fabric::Wiring& checked(const fabric::Wiring& wiring, std::size_t children) {
    check(wiring);
    if (children == 0 || children > kMostChildren) {
        throw Error(ErrorKind::invalid, "a switch with " + std::to_string(children) + " children; expected 1 to " +
                                            std::to_string(kMostChildren));
    }
    return wiring;
}

constexpr fabric::Time kLongestWait = 1'000'000'000;  // what a heartbeat says at most

std::optional<luwu_stream> stream_of(std::uint8_t kind) {
    switch (kind) {
        case LUWU_REQUEST:
            return LUWU_STREAM_REQUESTS;
        case LUWU_EXPONENTS:
            return LUWU_STREAM_EXPONENTS;
        case LUWU_GRADIENTS:
            return LUWU_STREAM_GRADIENTS;
        default:
            return std::nullopt;
    }
}

}  // namespace

SwitchNode::SwitchNode(const fabric::Wiring& wiring, const fabric::Address& parent, std::uint16_t child,
                       const std::vector<fabric::Address>& children, std::unique_ptr<SlotTable> gradients)
    : wiring_(checked(wiring, children.size())),
      seal_(wiring.job, wiring.key, wiring.payload_bytes),
      epoch_(wiring.epoch),
      parent_(seal_, wiring.timing, parent, child, wiring.incarnation, wiring.window[LUWU_STREAM_GRADIENTS],
              wiring.payload_bytes) {
    for (const fabric::Address& address : children) {
        children_.emplace_back(seal_, wiring.timing, address, std::uint16_t{LUWU_FROM_PARENT}, wiring.incarnation,
                               wiring.window[LUWU_STREAM_PARAMETERS], wiring.payload_bytes);
    }
    marks_told_.assign(children.size(), 0);
    const auto count = static_cast<std::uint32_t>(children.size());
    for (const luwu_stream stream : kUp) {
        const bool ordered = stream == LUWU_STREAM_GRADIENTS && wiring.form == LUWU_FLOAT32;
        if (stream == LUWU_STREAM_GRADIENTS && gradients != nullptr) {
            slots_.push_back(std::move(gradients));
        } else {
            slots_.push_back(std::make_unique<Slots>(stream, wiring, count, ordered));
        }
        stats_.state_bytes += std::uint64_t{wiring.window[stream]} *
                              (stream == LUWU_STREAM_REQUESTS ? 0 : wiring.payload_bytes) * (ordered ? count : 1);
    }
}

void SwitchNode::start_trace(std::uint64_t most_records) {
    if (!adds_elsewhere()) sums_.start(most_records);
}

void SwitchNode::begin_epoch(std::uint32_t epoch) {
    epoch_ = epoch;
    sums_.begin_epoch();
    for (const auto& slots : slots_) slots->begin_epoch(epoch);
    waiting_ = {};
    for (fabric::Link& child : children_) child.reset();
    parent_.reset();
    marks_told_.assign(children_.size(), 0);
    marks_below_ = 0;
}

void SwitchNode::receive(const fabric::Address& from, const fabric::Datagram& datagram, fabric::Time now,
                         fabric::Outbox& outbox) {
    ++stats_.packets_in;
    fabric::Packet packet;
    if (!seal_.open(datagram, packet, stats_.drops)) return;
    if (packet.head.sender == LUWU_TO_CONTROLLER && adds_elsewhere()) return take_note(packet, now, outbox);
    const bool down = packet.head.sender == LUWU_FROM_PARENT;
    if (down ? !(from == parent_.other())
             : packet.head.sender >= children_.size() || !(from == children_[packet.head.sender].other())) {
        return drop(fabric::PacketDrop::sender);
    }
    if (down && packet.head.kind == LUWU_HEARTBEAT && packet.head.epoch > epoch_) begin_epoch(packet.head.epoch);
    if (packet.head.epoch != epoch_) return drop(fabric::PacketDrop::epoch);
    if (datagram.marked && packet.head.kind != LUWU_HEARTBEAT) {
        (down ? parent_ : children_[packet.head.sender]).count_mark();
    }
    down ? from_parent(packet, datagram, now, outbox) : from_child(packet, now, outbox);
}

void SwitchNode::from_parent(const fabric::Packet& packet, std::span<const std::byte> datagram, fabric::Time now,
                             fabric::Outbox& outbox) {
    switch (packet.head.kind) {
        case LUWU_PARAMETERS:
        case LUWU_AGREED:
            return forwards_.push_back(datagram);
        case LUWU_HEARTBEAT:
            return take_parents_heartbeat(packet, now, outbox);
        default:
            return drop(fabric::PacketDrop::kind);
    }
}

// Child by child, so that what came in one run leaves in one run.
void SwitchNode::forward(fabric::Outbox& outbox) {
    for (const fabric::Link& child : children_) {
        for (const std::span<const std::byte> datagram : forwards_) outbox.send(child.other(), {}, datagram);
    }
    stats_.packets_out += children_.size() * forwards_.size();
    forwards_.clear();
}

void SwitchNode::take_parents_heartbeat(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox) {
    const std::uint64_t before = under_way();
    if (!parent_.take(packet, now, stats_.drops)) return;
    const fabric::Heartbeat& theirs = parent_.theirs();
    std::uint64_t lost = 0;
    for (const luwu_stream stream : kUp) slots(stream).release(theirs.ack[stream]);
    sums_.release(theirs.ack[LUWU_STREAM_GRADIENTS]);
    for (std::uint32_t i = 0; i < theirs.holes_used; ++i) {
        const fabric::Hole& hole = theirs.holes[i];
        if (hole.stream < LUWU_STREAM_REQUESTS || hole.stream > LUWU_STREAM_GRADIENTS) continue;
        const auto stream = static_cast<luwu_stream>(hole.stream);
        const std::uint64_t end = slots(stream).end();
        const std::uint64_t farthest = parent_.farthest(stream);
        const fabric::Time age = parent_.resend_age(now, farthest > 0 ? slots(stream).sent_at(farthest - 1) : 0);
        // A hole may be said to begin anywhere: what has no slot any more is not looked at one by one.
        for (std::uint64_t at = std::max(hole.first, slots(stream).base()); at < end; ++at) {
            if (at - hole.first >= hole.length) break;
            if (!slots(stream).take_hole(at, now, age)) continue;
            send_sum(stream, at, now, outbox);
            ++stats_.sums_sent_again;
            ++lost;
        }
    }
    parent_.observe(now, before, under_way(), lost);
    if (!parent_.news()) return;
    for (fabric::Link& child : children_) child.changed();
}

void SwitchNode::from_child(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox) {
    const std::uint32_t number = packet.head.sender;
    fabric::Link& child = children_[number];
    if (packet.head.kind == LUWU_HEARTBEAT) {
        if (!child.take(packet, now, stats_.drops) || !child.news()) return;
        parent_.changed();
        if (adds_elsewhere()) child.changed();  // what it sent was not seen here
        return;
    }
    const auto stream = stream_of(packet.head.kind);
    if (!stream) return drop(fabric::PacketDrop::kind);
    if (!parent_.heard()) return drop(fabric::PacketDrop::not_ready);  // where the server stands is not known yet
    const SlotTable::Verdict verdict = slots(*stream).add(number, packet);
    const bool fresh = verdict == SlotTable::Verdict::added || verdict == SlotTable::Verdict::completed;
    if (fresh && stream == LUWU_STREAM_GRADIENTS) sums_.came(packet.head, now);
    switch (verdict) {
        case SlotTable::Verdict::added:
            break;
        case SlotTable::Verdict::again:
            drop(fabric::PacketDrop::duplicate);
            ++stats_.sums_sent_again;
            send_sum(*stream, packet.head.sequence, now, outbox);
            break;
        case SlotTable::Verdict::completed:
            pass_up(*stream, packet.head.sequence, now, outbox);
            break;
        case SlotTable::Verdict::duplicate:
            drop(fabric::PacketDrop::duplicate);
            break;
        case SlotTable::Verdict::outside:
            drop(fabric::PacketDrop::window);
            break;
    }
    child.changed();
}

// A sum was completed inside the kernel, and has to be sent from here.
void SwitchNode::take_note(const fabric::Packet& packet, fabric::Time now, fabric::Outbox& outbox) {
    if (packet.head.epoch != epoch_ || packet.head.kind != LUWU_GRADIENTS) return drop(fabric::PacketDrop::sender);
    if (slots(LUWU_STREAM_GRADIENTS).complete(packet.head.sequence)) {
        send_sum(LUWU_STREAM_GRADIENTS, packet.head.sequence, now, outbox);
    }
}

// Sums that the parent has not reported, of all streams.
std::uint64_t SwitchNode::under_way() const {
    std::uint64_t sum = 0;
    for (const luwu_stream stream : kUp) {
        const std::uint64_t sent = slots(stream).sent_end();
        sum += sent - std::min(sent, parent_.arrived(stream));
    }
    return sum;
}

// Children may be faster than the link up. What it has no room for waits in its slot, unless later ones were sent: then
// the parent cannot report those before it has this one.
void SwitchNode::pass_up(luwu_stream stream, std::uint64_t sequence, fabric::Time now, fabric::Outbox& outbox) {
    const bool full = !waiting_.empty() || under_way() >= parent_.window();
    if (stream == LUWU_STREAM_GRADIENTS && sequence >= slots(stream).sent_end() && full) {
        return waiting_.push(sequence);
    }
    send_sum(stream, sequence, now, outbox);
}

void SwitchNode::send_waiting(fabric::Time now, fabric::Outbox& outbox) {
    while (!waiting_.empty() && under_way() < parent_.window()) {
        const std::uint64_t sequence = waiting_.top();
        waiting_.pop();
        if (slots(LUWU_STREAM_GRADIENTS).complete(sequence)) {
            send_sum(LUWU_STREAM_GRADIENTS, sequence, now, outbox);
        }
    }
}

void SwitchNode::send_sum(luwu_stream stream, std::uint64_t sequence, fabric::Time now, fabric::Outbox& outbox) {
    SlotTable::Sum sum = slots(stream).sum(sequence, outbox);
    sum.head.sender = parent_.sender();
    if (!sum.checksum_added) sum.head.checksum = seal_.checksum_of(sum.head, sum.payload);
    outbox.send(parent_.other(), std::as_bytes(std::span(&sum.head, 1)), sum.payload);
    slots(stream).sent(sequence, now);
    if (stream == LUWU_STREAM_GRADIENTS) sums_.sent(sum.head, now);
    ++stats_.sums_sent;
    ++stats_.packets_out;
}

bool SwitchNode::ready() const {
    return std::all_of(children_.begin(), children_.end(), [](const fabric::Link& child) { return child.heard(); });
}

bool SwitchNode::may_be_marked() const {
    const auto counts = [](const fabric::Link& link) { return link.counts_marks(); };
    return counts(parent_) && std::all_of(children_.begin(), children_.end(), counts);
}

// The least of what the children say, and all that any of them misses.
void SwitchNode::send_up(fabric::Time now, fabric::Outbox& outbox) {
    fabric::Heartbeat ours{};
    if (ready()) {
        constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
        std::fill_n(ours.next, LUWU_STREAMS, kAll);
        std::fill_n(ours.ack, LUWU_STREAMS, kAll);
        std::fill_n(ours.credit, LUWU_STREAMS, kAll);
        for (const fabric::Link& child : children_) {
            for (std::size_t stream = 0; stream < LUWU_STREAMS; ++stream) {
                ours.next[stream] = std::min(ours.next[stream], child.theirs().next[stream]);
                ours.ack[stream] = std::min(ours.ack[stream], child.theirs().ack[stream]);
                ours.credit[stream] = std::min(ours.credit[stream], child.theirs().credit[stream]);
            }
        }
        if (!waiting_.empty()) {
            ours.next[LUWU_STREAM_GRADIENTS] = std::min(ours.next[LUWU_STREAM_GRADIENTS], waiting_.top());
        }
        std::copy_n(ours.ack, LUWU_STREAMS, ours.heard);
        // Packets of the parent are copied to the children as they come: to keep the children's queues short is its
        // task.
        fabric::Time wait = 0;
        ours.counts_marks = counts_marks() ? 1 : 0;
        for (const fabric::Link& child : children_) {
            wait = std::max(wait, child.wait());
            if (!child.counts_marks()) ours.counts_marks = 0;
        }
        add_marks_below();
        ours.marked = marks_below_;
        ours.below = static_cast<std::uint32_t>(std::min(wait, kLongestWait) / 1'000);
        merge_holes(ours);
    }
    parent_.send_heartbeat(ours, epoch_, now, outbox);
}

// The most that any child has told since the last time: one queue that marks is enough to slow the parent down.
void SwitchNode::add_marks_below() {
    std::uint32_t most = 0;
    for (std::size_t number = 0; number < children_.size(); ++number) {
        const std::uint32_t told = children_[number].theirs().marked;
        const std::uint32_t before = std::exchange(marks_told_[number], told);
        if (told > before) most = std::max(most, told - before);
    }
    marks_below_ += most;
}

void SwitchNode::merge_holes(fabric::Heartbeat& ours) const {
    std::vector<fabric::Hole> all;
    constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
    std::array<std::uint64_t, LUWU_STREAMS> told;      // the children tell of packets up to here, all of them
    std::array<std::uint64_t, LUWU_STREAMS> farthest;  // that has arrived at all children
    told.fill(kAll);
    farthest.fill(kAll);
    for (const fabric::Link& child : children_) {
        const fabric::Heartbeat& theirs = child.theirs();
        std::array<std::uint64_t, LUWU_STREAMS> ends = std::to_array(theirs.ack);
        for (const fabric::Hole& hole : std::span(theirs.holes, theirs.holes_used)) {
            if (hole.stream >= LUWU_STREAMS) continue;
            ends[hole.stream] = std::max(ends[hole.stream], hole.first + hole.length);
            if (hole.length > 0) all.push_back(hole);
        }
        for (std::uint32_t stream = 0; stream < LUWU_STREAMS; ++stream) {
            const std::uint64_t here = child.farthest(static_cast<luwu_stream>(stream));
            told[stream] = std::min(told[stream], ends[stream]);
            farthest[stream] = std::min(farthest[stream], std::max(theirs.ack[stream], here));
        }
    }
    std::sort(all.begin(), all.end(), [](const fabric::Hole& left, const fabric::Hole& right) {
        return std::tie(left.stream, left.first) < std::tie(right.stream, right.first);
    });
    const auto close = [&](std::uint32_t stream) { fabric::close_holes(stream, farthest[stream], ours); };
    for (const fabric::Hole& hole : all) {
        if (hole.first > told[hole.stream]) continue;  // what is before it may be missing, too
        fabric::Hole* last = ours.holes_used > 0 ? &ours.holes[ours.holes_used - 1] : nullptr;
        if (last != nullptr && last->stream == hole.stream && hole.first <= last->first + last->length) {
            const std::uint64_t end = std::max(last->first + last->length, hole.first + hole.length);
            last->length = static_cast<std::uint32_t>(end - last->first);
            continue;
        }
        if (last != nullptr && last->stream != hole.stream) close(last->stream);
        if (ours.holes_used < LUWU_MOST_HOLES) ours.holes[ours.holes_used++] = hole;
    }
    if (ours.holes_used > 0) close(ours.holes[ours.holes_used - 1].stream);
}

// Sends the parent's news, and the packets that this child lacks here.
void SwitchNode::send_down(fabric::Link& child, std::uint32_t number, fabric::Time now, fabric::Outbox& outbox) {
    const fabric::Heartbeat& theirs = parent_.theirs();
    fabric::Heartbeat ours{};
    ours.next[LUWU_STREAM_PARAMETERS] = theirs.next[LUWU_STREAM_PARAMETERS];
    ours.next[LUWU_STREAM_EXPONENTS] = theirs.next[LUWU_STREAM_EXPONENTS];
    for (const luwu_stream stream : kUp) {
        ours.ack[stream] = theirs.ack[stream];
        ours.credit[stream] = std::min(theirs.credit[stream], slots(stream).end());
        ours.heard[stream] = slots(stream).heard(number);
        slots(stream).report_holes(number, child.theirs().next[stream], ours);
    }
    ours.counts_marks = counts_marks() ? 1 : 0;
    if (adds_elsewhere()) {  // sums do not wait here for room on the link up: children have to
        const std::uint64_t arrived =
            std::max(parent_.arrived(LUWU_STREAM_GRADIENTS), slots(LUWU_STREAM_GRADIENTS).base());
        std::uint64_t& credit = ours.credit[LUWU_STREAM_GRADIENTS];
        credit = std::min(credit, arrived + parent_.window());
    }
    child.send_heartbeat(ours, epoch_, now, outbox);
}

fabric::Time SwitchNode::advance(fabric::Time now, fabric::Outbox& outbox) {
    forward(outbox);
    send_waiting(now, outbox);
    fabric::Time next = parent_.heartbeat_at();
    if (next <= now) {
        send_up(now, outbox);
        next = parent_.heartbeat_at();
    }
    for (std::uint32_t number = 0; number < children_.size() && parent_.heard(); ++number) {
        fabric::Link& child = children_[number];
        if (child.heartbeat_at() <= now) send_down(child, number, now, outbox);
        next = std::min(next, child.heartbeat_at());
    }
    return next;
}

SwitchNodeStats SwitchNode::stats() const {
    SwitchNodeStats stats = stats_;
    for (const fabric::Link& child : children_) {
        stats.heartbeats_in += child.heartbeats_heard();
        stats.heartbeats_out += child.heartbeats_sent();
    }
    stats.heartbeats_in += parent_.heartbeats_heard();
    stats.heartbeats_out += parent_.heartbeats_sent();
    return stats;
}

}  // namespace luwu::switching
