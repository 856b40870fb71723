#include "fabric/protocol/worker_node.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/convert.h"
#include "kernels/fixed_point.h"
#include "store/error.h"

namespace luwu::fabric {

namespace {

template <class Messages>
auto find(Messages& messages, std::uint64_t sequence, const auto& message_of) {
    const auto place =
        std::upper_bound(messages.begin(), messages.end(), sequence,
                         [&](std::uint64_t wanted, const auto& entry) { return wanted < message_of(entry).end; });
    return place != messages.end() && message_of(*place).holds(sequence) ? &*place : nullptr;
}

}  // namespace

WorkerNode::WorkerNode(const Wiring& wiring, const Address& parent, std::uint16_t child, WorkerEvents events)
    : wiring_(check(wiring)),
      seal_(wiring.job, wiring.key, wiring.payload_bytes),
      link_(seal_, wiring.timing, parent, child, wiring.incarnation, wiring.window[LUWU_STREAM_GRADIENTS],
            wiring.payload_bytes),
      events_(std::move(events)),
      epoch_(wiring.epoch),
      requests_(wiring.window[LUWU_STREAM_REQUESTS]),
      exponents_(wiring.window[LUWU_STREAM_EXPONENTS]),
      gradients_(wiring.window[LUWU_STREAM_GRADIENTS]),
      parameters_(wiring.window[LUWU_STREAM_PARAMETERS]),
      agreed_(wiring.window[LUWU_STREAM_EXPONENTS]) {}

void WorkerNode::pull(std::uint32_t block, std::byte* memory) {
    const std::uint64_t bytes = wiring_.parameter_bytes(block);
    const std::uint64_t first = std::exchange(parameters_end_, parameters_end_ + wiring_.packets(bytes));
    pulls_.push_back({{block, first, parameters_end_, bytes}, memory});
    link_.changed();
}

void WorkerNode::push(std::uint32_t block, const std::byte* gradient, std::vector<std::uint8_t> exponents) {
    const std::uint64_t bytes = wiring_.gradient_bytes(block);
    if (exponents.size() != wiring_.exponent_bytes(block)) {
        throw Error(ErrorKind::invalid, "a gradient of block " + std::to_string(block) + " with " +
                                            std::to_string(exponents.size()) + " exponents; expected " +
                                            std::to_string(wiring_.exponent_bytes(block)));
    }
    Push entry;
    const std::uint64_t first = std::exchange(exponents_end_, exponents_end_ + wiring_.packets(exponents.size()));
    entry.exponents = {block, first, exponents_end_, exponents.size()};
    const std::uint64_t start = std::exchange(gradients_end_, gradients_end_ + wiring_.packets(bytes));
    entry.gradient = {block, start, gradients_end_, bytes};
    entry.values = gradient;
    entry.agreed.resize(exponents.size());
    entry.own = std::move(exponents);
    pushes_.push_back(std::move(entry));
    link_.changed();
}

void WorkerNode::enter_epoch(std::uint32_t epoch) {
    if (epoch <= epoch_) return;
    epoch_ = epoch;
    for (SendWindow* window : {&requests_, &exponents_, &gradients_}) window->reset();
    for (ReceiveWindow* window : {&parameters_, &agreed_}) window->reset();
    pulls_.clear();
    pushes_.clear();
    pulls_done_ = parameters_end_ = exponents_end_ = gradients_end_ = 0;
    link_.reset();
    events_.interrupted();
}

void WorkerNode::receive(const Address& from, const Datagram& datagram, Time now, Outbox&) {
    ++stats_.packets_in;
    Packet packet;
    if (!seal_.open(datagram, packet, stats_.drops)) return;
    const bool from_group = packet.head.kind == LUWU_PARAMETERS;  // may come from the server itself, by multicast
    if (packet.head.sender != LUWU_FROM_PARENT || (!from_group && !(from == link_.other())))
        return drop(PacketDrop::sender);
    if (packet.head.kind == LUWU_HEARTBEAT) enter_epoch(packet.head.epoch);
    if (packet.head.epoch != epoch_) return drop(PacketDrop::epoch);
    if (datagram.marked && packet.head.kind != LUWU_HEARTBEAT) link_.count_mark();
    switch (packet.head.kind) {
        case LUWU_PARAMETERS:
            return take_parameters(packet);
        case LUWU_AGREED:
            return take_agreed(packet);
        case LUWU_HEARTBEAT:
            return take_heartbeat(packet, now);
        default:
            return drop(PacketDrop::kind);
    }
}

bool WorkerNode::fits(const Packet& packet, const Message& message) const {
    return packet.head.block == message.block && packet.head.index == packet.head.sequence - message.first &&
           packet.head.bytes == message.length(packet.head.sequence, wiring_.payload_bytes) &&
           packet.head.form == LUWU_BYTES;
}

void WorkerNode::take_parameters(const Packet& packet) {
    const std::uint64_t sequence = packet.head.sequence;
    const auto verdict = parameters_.look(sequence);
    if (verdict == ReceiveWindow::Verdict::duplicate) return drop(PacketDrop::duplicate);
    Pull* pull = find(pulls_, sequence, [](const Pull& entry) -> const Message& { return entry.message; });
    if (verdict == ReceiveWindow::Verdict::outside || pull == nullptr) return drop(PacketDrop::window);
    if (!fits(packet, pull->message)) return drop(PacketDrop::block);
    std::memcpy(pull->memory + pull->message.offset(sequence, wiring_.payload_bytes), packet.payload.data(),
                packet.payload.size());
    parameters_.mark(sequence);
    link_.changed();
    while (!pulls_.empty() && parameters_.ack() >= pulls_.front().message.end) {
        pulls_.pop_front();
        ++pulls_done_;
        events_.pulled();
    }
}

void WorkerNode::take_agreed(const Packet& packet) {
    const std::uint64_t sequence = packet.head.sequence;
    const auto verdict = agreed_.look(sequence);
    if (verdict == ReceiveWindow::Verdict::duplicate) return drop(PacketDrop::duplicate);
    Push* push = push_of_exponents(sequence);
    if (verdict == ReceiveWindow::Verdict::outside || push == nullptr || sequence >= exponents_.next()) {
        return drop(PacketDrop::window);
    }
    if (!fits(packet, push->exponents)) return drop(PacketDrop::block);
    std::memcpy(push->agreed.data() + push->exponents.offset(sequence, wiring_.payload_bytes), packet.payload.data(),
                packet.payload.size());
    agreed_.mark(sequence);
    link_.changed();
}

void WorkerNode::take_heartbeat(const Packet& packet, Time now) {
    const std::uint64_t before = under_way();  // of which the link's state is a part
    if (!link_.take(packet, now, stats_.drops)) return;
    const Heartbeat& theirs = link_.theirs();
    requests_.take_state(theirs.ack[LUWU_STREAM_REQUESTS], theirs.credit[LUWU_STREAM_REQUESTS], now);
    exponents_.take_state(theirs.ack[LUWU_STREAM_EXPONENTS], theirs.credit[LUWU_STREAM_EXPONENTS], now);
    gradients_.take_state(theirs.ack[LUWU_STREAM_GRADIENTS], theirs.credit[LUWU_STREAM_GRADIENTS], now);
    const auto take_hole = [&](SendWindow& window, const Hole& hole) {
        const auto stream = static_cast<luwu_stream>(hole.stream);
        return window.take_hole(hole, now, link_.resend_age(now, window.sent_before(link_.farthest(stream))));
    };
    std::uint64_t lost = 0;
    for (std::uint32_t i = 0; i < theirs.holes_used; ++i) {
        const Hole& hole = theirs.holes[i];
        if (hole.stream == LUWU_STREAM_REQUESTS) lost += take_hole(requests_, hole);
        if (hole.stream == LUWU_STREAM_EXPONENTS) lost += take_hole(exponents_, hole);
        if (hole.stream == LUWU_STREAM_GRADIENTS) lost += take_hole(gradients_, hole);
    }
    link_.observe(now, before, under_way(), lost);
    while (!pushes_.empty() && gradients_.ack() >= pushes_.front().gradient.end) {
        pushes_.pop_front();
        events_.pushed();
    }
}

// Packets that the other end of the link has not reported, of all streams.
std::uint64_t WorkerNode::under_way() const {
    std::uint64_t sum = 0;
    const auto add = [&](const SendWindow& window, luwu_stream stream) {
        sum += window.next() - std::min(window.next(), link_.arrived(stream));
    };
    add(requests_, LUWU_STREAM_REQUESTS);
    add(exponents_, LUWU_STREAM_EXPONENTS);
    add(gradients_, LUWU_STREAM_GRADIENTS);
    return sum;
}

WorkerNode::Push* WorkerNode::push_of_exponents(std::uint64_t sequence) {
    return find(pushes_, sequence, [](const Push& push) -> const Message& { return push.exponents; });
}

WorkerNode::Push* WorkerNode::push_of_gradient(std::uint64_t sequence) {
    return find(pushes_, sequence, [](const Push& push) -> const Message& { return push.gradient; });
}

// Number after the last gradient packet whose exponents all workers have agreed on.
std::uint64_t WorkerNode::ready_gradients() const {
    std::uint64_t ready = gradients_.ack();
    for (const Push& push : pushes_) {
        if (agreed_.ack() >= push.exponents.end) {
            ready = push.gradient.end;
            continue;
        }
        if (agreed_.ack() <= push.exponents.first) break;
        const std::uint64_t groups = push.exponents.offset(agreed_.ack(), wiring_.payload_bytes);
        const std::uint64_t bytes = groups * kernels::kFixedGroup * wiring_.mantissa_bytes();
        ready = push.gradient.first + bytes / wiring_.payload_bytes;
        break;
    }
    return ready;
}

void WorkerNode::send(Head& head, std::span<const std::byte> payload, Outbox& outbox) {
    head.epoch = epoch_;
    head.sender = link_.sender();
    head.count = 1;
    seal_.close(head, payload);
    outbox.send(link_.other(), std::as_bytes(std::span(&head, 1)), payload);
    ++stats_.packets_out;
    link_.changed();
}

void WorkerNode::send_requests(Time now, Outbox& outbox) {
    while (const auto sequence = requests_.take(pulls_done_ + pulls_.size(), now)) {
        if (*sequence < pulls_done_) continue;
        Head head{};
        head.kind = LUWU_REQUEST;
        head.sequence = *sequence;
        head.block = pulls_[*sequence - pulls_done_].message.block;
        send(head, {}, outbox);
    }
}

void WorkerNode::send_exponents(Time now, Outbox& outbox) {
    while (const auto sequence = exponents_.take(exponents_end_, now)) {
        const Push* push = push_of_exponents(*sequence);
        if (push == nullptr) continue;  // answered to all since it was reported missing
        Head head{};
        head.kind = LUWU_EXPONENTS;
        head.sequence = *sequence;
        head.block = push->exponents.block;
        head.index = static_cast<std::uint32_t>(*sequence - push->exponents.first);
        const std::uint64_t offset = push->exponents.offset(*sequence, wiring_.payload_bytes);
        const std::uint64_t length = push->exponents.length(*sequence, wiring_.payload_bytes);
        send(head, std::as_bytes(std::span(push->own).subspan(offset, length)), outbox);
    }
}

// Elements from `first`, which begins a group, as they go on the wire.
void WorkerNode::encode(const Push& push, std::uint64_t first, std::uint64_t elements, std::byte* mantissas) const {
    const kernels::Dtype dtype = wiring_.blocks[push.gradient.block].dtype;
    const std::byte* values = push.values + first * kernels::size_of(dtype);
    if (wiring_.form != LUWU_FLOAT32) {
        return kernels::fixed_encode(values, dtype, elements, push.agreed.data() + first / kernels::kFixedGroup,
                                     wiring_.fixed_form(), wiring_.workers, mantissas);
    }
    if (dtype == kernels::Dtype::float32) {
        std::memcpy(mantissas, values, elements * sizeof(float));
    } else {
        kernels::low_to_float(dtype, reinterpret_cast<const std::uint16_t*>(values),
                              reinterpret_cast<float*>(mantissas), elements);
    }
}

void WorkerNode::send_gradients(Time now, Outbox& outbox) {
    const std::uint64_t ready = ready_gradients();
    for (std::uint64_t sent = 0; sent < kBurst; ++sent) {
        if (under_way() >= link_.window() && !gradients_.has_missing()) return;
        const auto sequence = gradients_.take(ready, now);
        if (!sequence) return;
        const Push* push = push_of_gradient(*sequence);
        if (push == nullptr) continue;
        Head head{};
        head.kind = LUWU_GRADIENTS;
        head.form = static_cast<std::uint8_t>(wiring_.form);
        head.sequence = *sequence;
        head.block = push->gradient.block;
        head.index = static_cast<std::uint32_t>(*sequence - push->gradient.first);
        const std::uint64_t offset = push->gradient.offset(*sequence, wiring_.payload_bytes);
        const std::uint64_t length = push->gradient.length(*sequence, wiring_.payload_bytes);
        std::byte* body = outbox.room(length);
        encode(*push, offset / wiring_.mantissa_bytes(), length / wiring_.mantissa_bytes(), body);
        send(head, {body, length}, outbox);
    }
}

void WorkerNode::send_heartbeat(Time now, Outbox& outbox) {
    const Heartbeat& theirs = link_.theirs();
    Heartbeat ours{};
    ours.next[LUWU_STREAM_REQUESTS] = requests_.next();
    ours.next[LUWU_STREAM_EXPONENTS] = exponents_.next();
    ours.next[LUWU_STREAM_GRADIENTS] = gradients_.next();
    ours.ack[LUWU_STREAM_PARAMETERS] = ours.heard[LUWU_STREAM_PARAMETERS] = parameters_.ack();
    ours.ack[LUWU_STREAM_EXPONENTS] = ours.heard[LUWU_STREAM_EXPONENTS] = agreed_.ack();
    ours.credit[LUWU_STREAM_PARAMETERS] = std::min(parameters_end_, parameters_.end());
    ours.counts_marks = 1;
    agreed_.report_holes(LUWU_STREAM_EXPONENTS, theirs.next[LUWU_STREAM_EXPONENTS], ours);
    parameters_.report_holes(LUWU_STREAM_PARAMETERS, std::min(theirs.next[LUWU_STREAM_PARAMETERS], parameters_end_),
                             ours);
    link_.send_heartbeat(ours, epoch_, now, outbox);
}

Time WorkerNode::advance(Time now, Outbox& outbox) {
    for (SendWindow* window : {&requests_, &exponents_, &gradients_}) {
        window->resend_if_stalled(now, wiring_.timing.resend, wiring_.timing.longest_resend, kStallBurst);
    }
    send_requests(now, outbox);
    send_exponents(now, outbox);
    send_gradients(now, outbox);
    if (link_.heartbeat_at() <= now) send_heartbeat(now, outbox);
    const bool more =
        gradients_.has_missing() || (gradients_.has_work(ready_gradients()) && under_way() < link_.window());
    return more ? now : std::min(link_.heartbeat_at(), now + wiring_.timing.resend);
}

WorkerNodeStats WorkerNode::stats() const {
    WorkerNodeStats stats = stats_;
    stats.resent = requests_.resent() + exponents_.resent() + gradients_.resent();
    stats.heartbeats_in = link_.heartbeats_heard();
    stats.heartbeats_out = link_.heartbeats_sent();
    return stats;
}

}  // namespace luwu::fabric
