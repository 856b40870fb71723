#include "fabric/protocol/server_node.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/fixed_point.h"

namespace luwu::fabric {

ServerNode::ServerNode(const Wiring& wiring, const Address& child, const Address& group, ServerEvents events)
    : wiring_(check(wiring)),
      seal_(wiring.job, wiring.key, wiring.payload_bytes),
      link_(seal_, wiring.timing, child, LUWU_FROM_PARENT, wiring.incarnation, wiring.window[LUWU_STREAM_PARAMETERS],
            wiring.payload_bytes),
      group_(group),
      events_(std::move(events)),
      epoch_(wiring.epoch),
      requests_(wiring.window[LUWU_STREAM_REQUESTS]),
      requested_(wiring.window[LUWU_STREAM_REQUESTS]),
      parameters_(wiring.window[LUWU_STREAM_PARAMETERS]),
      exponents_(wiring.window[LUWU_STREAM_EXPONENTS]),
      agreed_(wiring.window[LUWU_STREAM_EXPONENTS]),
      stored_(wiring.window[LUWU_STREAM_EXPONENTS]),
      gradients_(wiring.window[LUWU_STREAM_GRADIENTS]) {}

void ServerNode::offer(std::uint64_t pull, const std::byte* parameters) {
    deliveries_.at(pull - delivered_).parameters = parameters;
}

std::vector<std::uint32_t> ServerNode::begin_epoch() {
    std::vector<std::uint32_t> offered;
    for (const Delivery& delivery : deliveries_) {
        if (delivery.parameters != nullptr) offered.push_back(delivery.message.block);
    }
    ++epoch_;
    for (ReceiveWindow* window : {&requests_, &exponents_, &gradients_}) window->reset();
    for (SendWindow* window : {&parameters_, &agreed_}) window->reset();
    deliveries_.clear();
    collections_.clear();
    delivered_ = requests_taken_ = parameters_end_ = agreed_ready_ = exponents_end_ = gradients_end_ = 0;
    link_.reset();
    return offered;
}

void ServerNode::receive(const Address& from, const Datagram& datagram, Time now, Outbox&) {
    ++stats_.packets_in;
    stats_.bytes_in += datagram.bytes.size();
    Packet packet;
    if (!seal_.open(datagram, packet, stats_.drops)) return;
    if (!(from == link_.other()) || packet.head.sender != 0) return drop(PacketDrop::sender);
    if (packet.head.epoch != epoch_) return drop(PacketDrop::epoch);
    if (datagram.marked && packet.head.kind != LUWU_HEARTBEAT) link_.count_mark();
    if (packet.head.kind == LUWU_HEARTBEAT) return take_heartbeat(packet, now);
    if (packet.head.count != wiring_.workers) return drop(PacketDrop::sender);
    if ((packet.head.flags & LUWU_CONFLICT) != 0) {
        broken_ = true;
        return events_.broken("workers pulled or pushed different blocks (block " + std::to_string(packet.head.block) +
                              " was one of them); every worker must run the same blocks in the same order");
    }
    switch (packet.head.kind) {
        case LUWU_REQUEST:
            return take_request(packet);
        case LUWU_EXPONENTS:
            return take_exponents(packet);
        case LUWU_GRADIENTS:
            return take_gradient(packet);
        default:
            return drop(PacketDrop::kind);
    }
}

void ServerNode::take_heartbeat(const Packet& packet, Time now) {
    const std::uint64_t before = under_way();
    if (!link_.take(packet, now, stats_.drops)) return;
    const Heartbeat& theirs = link_.theirs();
    parameters_.take_state(theirs.ack[LUWU_STREAM_PARAMETERS], theirs.credit[LUWU_STREAM_PARAMETERS], now);
    const std::uint64_t answered = agreed_.ack();
    agreed_.take_state(theirs.ack[LUWU_STREAM_EXPONENTS], std::numeric_limits<std::uint64_t>::max(), now);
    if (agreed_.ack() != answered) link_.changed();
    // Whoever misses a packet may be further down than this link.
    const auto take_hole = [this, now](SendWindow& window, const Hole& hole) {
        const Time arrived = window.sent_before(link_.farthest(static_cast<luwu_stream>(hole.stream)));
        const Time answer = window.answered_in() + window.answered_in() / 2;
        return window.take_hole(hole, now, std::max(link_.resend_age(now, arrived), answer));
    };
    std::uint64_t lost = 0;
    for (std::uint32_t i = 0; i < theirs.holes_used; ++i) {
        const Hole& hole = theirs.holes[i];
        if (hole.stream == LUWU_STREAM_PARAMETERS) lost += take_hole(parameters_, hole);
        if (hole.stream == LUWU_STREAM_EXPONENTS) lost += take_hole(agreed_, hole);
    }
    link_.observe(now, before, under_way(), lost, parameters_.answered_in());
    while (!deliveries_.empty() && parameters_.ack() >= deliveries_.front().message.end) {
        const std::uint32_t block = deliveries_.front().message.block;
        deliveries_.pop_front();
        ++delivered_;
        events_.delivered(block);
    }
}

void ServerNode::take_request(const Packet& packet) {
    const Head& head = packet.head;
    const auto verdict = requests_.look(head.sequence);
    if (verdict != ReceiveWindow::Verdict::fresh) {
        return drop(verdict == ReceiveWindow::Verdict::outside ? PacketDrop::window : PacketDrop::duplicate);
    }
    if (head.bytes != 0 || head.index != 0 || head.block >= wiring_.blocks.size()) return drop(PacketDrop::block);
    requested_[head.sequence % requested_.size()] = head.block;
    requests_.mark(head.sequence);
    link_.changed();
    for (; requests_taken_ < requests_.ack(); ++requests_taken_) {
        const std::uint32_t block = requested_[requests_taken_ % requested_.size()];
        const std::uint64_t bytes = wiring_.parameter_bytes(block);
        const std::uint64_t first = std::exchange(parameters_end_, parameters_end_ + wiring_.packets(bytes));
        deliveries_.push_back({{block, first, parameters_end_, bytes}, nullptr});
        events_.wanted(requests_taken_, block);
    }
}

void ServerNode::take_exponents(const Packet& packet) {
    const Head& head = packet.head;
    const auto verdict = exponents_.look(head.sequence);
    if (verdict == ReceiveWindow::Verdict::duplicate) return drop(PacketDrop::duplicate);
    if (verdict == ReceiveWindow::Verdict::outside || head.sequence >= agreed_.ack() + stored_.size()) {
        return drop(PacketDrop::window);
    }
    Stored& stored = stored_[head.sequence % stored_.size()];
    stored.head = head;
    stored.payload.assign(packet.payload.begin(), packet.payload.end());
    exponents_.mark(head.sequence);
    link_.changed();
}

// Goes through exponents in their order as far as they are there and memory for the sum is. False: the workers broke
// the protocol.
bool ServerNode::agree_on_exponents() {
    for (; agreed_ready_ < exponents_.ack(); ++agreed_ready_, link_.changed()) {
        const Stored& stored = stored_[agreed_ready_ % stored_.size()];
        if (agreed_ready_ == exponents_end_) {
            if (stored.head.block >= wiring_.blocks.size() || !wiring_.blocks[stored.head.block].trainable)
                return false;
            if (!start_collection(stored.head.block)) return true;
        }
        Collection& collection = collections_.back();
        const Message& message = collection.exponents;
        if (stored.head.block != message.block || stored.head.index != agreed_ready_ - message.first ||
            stored.payload.size() != message.length(agreed_ready_, wiring_.payload_bytes)) {
            return false;
        }
        std::memcpy(collection.agreed.data() + message.offset(agreed_ready_, wiring_.payload_bytes),
                    stored.payload.data(), stored.payload.size());
    }
    return true;
}

bool ServerNode::start_collection(std::uint32_t block) {
    float* sum = events_.memory(block);
    if (sum == nullptr) return false;
    Collection collection;
    const std::uint64_t exponents = wiring_.exponent_bytes(block);
    const std::uint64_t first = std::exchange(exponents_end_, exponents_end_ + wiring_.packets(exponents));
    collection.exponents = {block, first, exponents_end_, exponents};
    const std::uint64_t bytes = wiring_.gradient_bytes(block);
    const std::uint64_t start = std::exchange(gradients_end_, gradients_end_ + wiring_.packets(bytes));
    collection.gradient = {block, start, gradients_end_, bytes};
    collection.sum = sum;
    collection.agreed.resize(exponents);
    collections_.push_back(std::move(collection));
    return true;
}

void ServerNode::take_gradient(const Packet& packet) {
    const Head& head = packet.head;
    const auto verdict = gradients_.look(head.sequence);
    if (verdict == ReceiveWindow::Verdict::duplicate) return drop(PacketDrop::duplicate);
    const auto collection = std::find_if(collections_.begin(), collections_.end(), [&head](const Collection& entry) {
        return entry.gradient.holds(head.sequence);
    });
    if (verdict == ReceiveWindow::Verdict::outside || collection == collections_.end()) return drop(PacketDrop::window);
    const Message& message = collection->gradient;
    if (head.form != wiring_.form || head.bytes != message.length(head.sequence, wiring_.payload_bytes)) {
        return drop(PacketDrop::form);
    }
    if (head.block != message.block || head.index != head.sequence - message.first) return drop(PacketDrop::block);
    const std::uint64_t first = message.offset(head.sequence, wiring_.payload_bytes) / wiring_.mantissa_bytes();
    const std::uint64_t elements = head.bytes / wiring_.mantissa_bytes();
    if (wiring_.form == LUWU_FLOAT32) {
        std::memcpy(collection->sum + first, packet.payload.data(), elements * sizeof(float));
    } else {
        kernels::fixed_decode(packet.payload.data(), wiring_.fixed_form(), elements,
                              collection->agreed.data() + first / kernels::kFixedGroup, wiring_.workers,
                              collection->sum + first);
    }
    gradients_.mark(head.sequence);
    link_.changed();
    finish_collections();
}

void ServerNode::finish_collections() {
    while (!collections_.empty() && gradients_.ack() >= collections_.front().gradient.end) {
        const Collection done = std::move(collections_.front());
        collections_.pop_front();
        events_.collected(done.gradient.block, done.sum);
    }
}

// Number after the last packet whose block is there, counted without a gap from the first that is not delivered.
std::uint64_t ServerNode::ready_parameters() const {
    std::uint64_t ready = parameters_.ack();
    for (const Delivery& delivery : deliveries_) {
        if (delivery.parameters == nullptr) break;
        ready = delivery.message.end;
    }
    return ready;
}

void ServerNode::send(const Address& to, Head& head, std::span<const std::byte> payload, Outbox& outbox) {
    head.epoch = epoch_;
    head.sender = LUWU_FROM_PARENT;
    seal_.close(head, payload);
    outbox.send(to, std::as_bytes(std::span(&head, 1)), payload);
    ++stats_.packets_out;
    link_.changed();
    stats_.bytes_out += sizeof(Head) + payload.size();
}

void ServerNode::send_agreed(Time now, Outbox& outbox) {
    while (const auto sequence = agreed_.take(agreed_ready_, now)) {
        const Stored& stored = stored_[*sequence % stored_.size()];
        Head head{};
        head.kind = LUWU_AGREED;
        head.sequence = *sequence;
        head.block = stored.head.block;
        head.index = stored.head.index;
        send(link_.other(), head, stored.payload, outbox);
    }
}

void ServerNode::send_parameters(Time now, Outbox& outbox) {
    const std::uint64_t ready = ready_parameters();
    for (std::uint64_t sent = 0; sent < kBurst; ++sent) {
        if (under_way() >= link_.window() && !parameters_.has_missing()) return;
        const auto sequence = parameters_.take(ready, now);
        if (!sequence) return;
        const auto delivery = std::find_if(deliveries_.begin(), deliveries_.end(),
                                           [&](const Delivery& entry) { return entry.message.holds(*sequence); });
        if (delivery == deliveries_.end()) continue;
        Head head{};
        head.kind = LUWU_PARAMETERS;
        head.sequence = *sequence;
        head.block = delivery->message.block;
        head.index = static_cast<std::uint32_t>(*sequence - delivery->message.first);
        const std::byte* body = delivery->parameters + delivery->message.offset(*sequence, wiring_.payload_bytes);
        send(group_.known() ? group_ : link_.other(), head,
             {body, delivery->message.length(*sequence, wiring_.payload_bytes)}, outbox);
    }
}

void ServerNode::send_heartbeat(Time now, Outbox& outbox) {
    const Heartbeat& theirs = link_.theirs();
    Heartbeat ours{};
    ours.next[LUWU_STREAM_PARAMETERS] = parameters_.next();
    ours.next[LUWU_STREAM_EXPONENTS] = agreed_.next();
    ours.ack[LUWU_STREAM_REQUESTS] = ours.heard[LUWU_STREAM_REQUESTS] = requests_.ack();
    ours.credit[LUWU_STREAM_REQUESTS] = requests_.end();
    ours.ack[LUWU_STREAM_EXPONENTS] = agreed_.ack();
    ours.heard[LUWU_STREAM_EXPONENTS] = exponents_.ack();
    ours.credit[LUWU_STREAM_EXPONENTS] = agreed_.ack() + stored_.size();
    ours.ack[LUWU_STREAM_GRADIENTS] = ours.heard[LUWU_STREAM_GRADIENTS] = gradients_.ack();
    ours.credit[LUWU_STREAM_GRADIENTS] = std::min(gradients_end_, gradients_.end());
    ours.counts_marks = 1;
    requests_.report_holes(LUWU_STREAM_REQUESTS, theirs.next[LUWU_STREAM_REQUESTS], ours);
    exponents_.report_holes(LUWU_STREAM_EXPONENTS, theirs.next[LUWU_STREAM_EXPONENTS], ours);
    gradients_.report_holes(LUWU_STREAM_GRADIENTS, std::min(theirs.next[LUWU_STREAM_GRADIENTS], gradients_end_), ours);
    link_.send_heartbeat(ours, epoch_, now, outbox);
    stats_.bytes_out += sizeof(Head) + offsetof(Heartbeat, holes) + ours.holes_used * sizeof(Hole);
}

Time ServerNode::advance(Time now, Outbox& outbox) {
    if (broken_) return now + wiring_.timing.idle_heartbeat;
    if (!agree_on_exponents()) {
        broken_ = true;
        events_.broken("the workers' gradients do not follow the protocol; run the same version of LuWu everywhere");
        return now;
    }
    for (SendWindow* window : {&parameters_, &agreed_}) {
        window->resend_if_stalled(now, wiring_.timing.resend, wiring_.timing.longest_resend, kStallBurst);
    }
    send_agreed(now, outbox);
    send_parameters(now, outbox);
    if (link_.heartbeat_at() <= now) send_heartbeat(now, outbox);
    const bool more =
        parameters_.has_missing() || (parameters_.has_work(ready_parameters()) && under_way() < link_.window());
    return more ? now : std::min(link_.heartbeat_at(), now + wiring_.timing.resend);
}

ServerNodeStats ServerNode::stats() const {
    ServerNodeStats stats = stats_;
    stats.resent = parameters_.resent() + agreed_.resent();
    stats.heartbeats_in = link_.heartbeats_heard();
    stats.heartbeats_out = link_.heartbeats_sent();
    return stats;
}

}  // namespace luwu::fabric
