#include "switch/slots.h"

#include <algorithm>
#include <cstring>

#include "kernels/fixed_point.h"

namespace luwu::switching {

Slots::Slots(luwu_stream stream, const fabric::Wiring& wiring, std::uint32_t children, bool ordered)
    : stream_(stream),
      payload_bytes_(stream == LUWU_STREAM_REQUESTS ? 0 : wiring.payload_bytes),
      children_(children),
      ordered_(ordered),
      slots_(wiring.window[stream]),
      payloads_(std::size_t{payload_bytes_} * slots_.size() * (ordered ? children : 1)),
      arrived_(children, fabric::ReceiveWindow(wiring.window[stream])) {}

std::byte* Slots::payload(std::uint64_t sequence, std::uint32_t child) {
    const std::size_t place = sequence % slots_.size() * (ordered_ ? children_ : 1) + (ordered_ ? child : 0);
    return payloads_.data() + place * payload_bytes_;
}

Slots::Verdict Slots::add(std::uint32_t child, const fabric::Packet& packet) {
    const fabric::Head& head = packet.head;
    if (head.sequence < base_) return Verdict::duplicate;
    if (head.sequence >= end() || packet.payload.size() > payload_bytes_) return Verdict::outside;
    Slot& slot = this->slot(head.sequence);
    if (arrived_[child].look(head.sequence) != fabric::ReceiveWindow::Verdict::fresh) {
        return complete(head.sequence) && slot.sent_at != 0 ? Verdict::again : Verdict::duplicate;
    }
    if (slot.sequence != head.sequence) {
        slot = {head.sequence, 0, head, 0};
        slot.head.count = 0;
        slot.head.checksum = 0;
    }
    if (head.block != slot.head.block || head.index != slot.head.index || head.bytes != slot.head.bytes ||
        head.form != slot.head.form) {
        slot.head.flags |= LUWU_CONFLICT;
    } else {
        add_payload(slot, child, packet);
    }
    slot.head.flags |= head.flags;
    slot.head.count = static_cast<std::uint16_t>(slot.head.count + head.count);
    slot.head.checksum += head.checksum;
    arrived_[child].mark(head.sequence);
    if (++slot.children < children_) return Verdict::added;
    if (ordered_) add_in_order(slot);
    return Verdict::completed;
}

void Slots::add_payload(const Slot& slot, std::uint32_t child, const fabric::Packet& packet) {
    if (packet.payload.empty()) return;
    std::byte* sum = payload(packet.head.sequence, child);
    const std::size_t bytes = packet.payload.size();
    if (slot.children == 0 || ordered_) {
        std::memcpy(sum, packet.payload.data(), bytes);
    } else if (stream_ == LUWU_STREAM_EXPONENTS) {
        kernels::max_exponents(reinterpret_cast<std::uint8_t*>(sum),
                               reinterpret_cast<const std::uint8_t*>(packet.payload.data()), bytes);
    } else {
        const auto form = packet.head.form == LUWU_INT16 ? kernels::FixedForm::int16 : kernels::FixedForm::int32;
        kernels::add_mantissas(sum, packet.payload.data(), form, bytes / kernels::size_of(form));
    }
}

void Slots::add_in_order(const Slot& slot) {
    std::byte* sum = payload(slot.sequence, 0);
    for (std::uint32_t child = 1; child < children_; ++child) {
        kernels::add_floats(sum, payload(slot.sequence, child), slot.head.bytes / sizeof(float));
    }
}

bool Slots::complete(std::uint64_t sequence) const {
    return slot(sequence).sequence == sequence && slot(sequence).children == children_;
}

Slots::Sum Slots::sum(std::uint64_t sequence, fabric::Outbox& /*outbox*/) const {
    const Slot& slot = this->slot(sequence);
    const std::size_t place = sequence % slots_.size() * (ordered_ ? children_ : 1);
    const bool added = stream_ != LUWU_STREAM_EXPONENTS && !ordered_ && (slot.head.flags & LUWU_CONFLICT) == 0;
    return {slot.head, {payloads_.data() + place * payload_bytes_, slot.head.bytes}, added};
}

bool Slots::take_hole(std::uint64_t sequence, fabric::Time now, fabric::Time min_age) {
    if (sequence < base_ || !complete(sequence)) return false;
    const fabric::Time sent_at = slot(sequence).sent_at;
    if (sent_at == 0 || sent_at + min_age > now) return false;
    slot(sequence).sent_at = now;
    return true;
}

void Slots::sent(std::uint64_t sequence, fabric::Time now) {
    slot(sequence).sent_at = now;
    sent_end_ = std::max(sent_end_, sequence + 1);
}

void Slots::release(std::uint64_t ack) {
    if (ack <= base_) return;
    base_ = ack;
    for (fabric::ReceiveWindow& window : arrived_) {
        if (window.ack() < ack) window.skip_to(ack);
    }
}

void Slots::begin_epoch(std::uint32_t /*epoch*/) {
    base_ = sent_end_ = 0;
    for (Slot& slot : slots_) slot.sequence = kFree;
    for (fabric::ReceiveWindow& window : arrived_) window.reset();
}

}  // namespace luwu::switching
