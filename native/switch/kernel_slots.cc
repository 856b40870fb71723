#include "switch/kernel_slots.h"

#include "fabric/protocol/windows.h"

#if LUWU_HAVE_XDP

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace luwu::switching {

namespace {

class KernelSlots final : public SlotTable {
  public:
    explicit KernelSlots(XdpProgram& program);

    Verdict add(std::uint32_t child, const fabric::Packet& packet) override;
    [[nodiscard]] bool elsewhere() const override { return true; }
    [[nodiscard]] bool complete(std::uint64_t sequence) const override;
    [[nodiscard]] Sum sum(std::uint64_t sequence, fabric::Outbox& outbox) const override;
    [[nodiscard]] bool take_hole(std::uint64_t sequence, fabric::Time now, fabric::Time min_age) override;
    void sent(std::uint64_t sequence, fabric::Time now) override;
    [[nodiscard]] std::uint64_t sent_end() const override;
    void release(std::uint64_t ack) override;
    [[nodiscard]] std::uint64_t base() const override { return base_; }
    [[nodiscard]] std::uint64_t end() const override { return base_ + window_; }
    [[nodiscard]] std::uint64_t heard(std::uint32_t child) override;
    void report_holes(std::uint32_t child, std::uint64_t next, fabric::Heartbeat& heartbeat) override;
    void begin_epoch(std::uint32_t epoch) override;

  private:
    [[nodiscard]] std::uint64_t arrived(std::uint64_t sequence) const;  // children, a bit each

    XdpProgram& program_;
    std::uint64_t all_;
    std::uint32_t window_;
    std::uint32_t epoch_;
    std::uint64_t base_ = 0;
    std::vector<std::uint64_t> heard_;  // by child: no need to look below
};

KernelSlots::KernelSlots(XdpProgram& program)
    : program_(program),
      all_(program.job().all_children),
      window_(program.job().window),
      epoch_(program.state().epoch),
      heard_(program.job().children) {}

// The program changes a slot's number only while none has arrived: who looks at the number first is not deceived.
std::uint64_t KernelSlots::arrived(std::uint64_t sequence) const {
    luwu_slot& slot = program_.slot(sequence);
    if (std::atomic_ref(slot.head.sequence).load(std::memory_order_acquire) != sequence) return 0;
    if (std::atomic_ref(slot.head.epoch).load(std::memory_order_acquire) != epoch_) return 0;
    return std::atomic_ref(slot.arrived).load(std::memory_order_acquire);
}

SlotTable::Verdict KernelSlots::add(std::uint32_t child, const fabric::Packet& packet) {
    const std::uint64_t sequence = packet.head.sequence;
    if (sequence < base_) return Verdict::duplicate;
    if (sequence >= end() || packet.payload.size() > program_.job().payload_bytes) return Verdict::outside;
    if ((arrived(sequence) >> child & 1U) != 0) return complete(sequence) ? Verdict::again : Verdict::duplicate;
    std::vector<std::byte> datagram(sizeof packet.head + packet.payload.size());
    std::memcpy(datagram.data(), &packet.head, sizeof packet.head);
    std::copy(packet.payload.begin(), packet.payload.end(), datagram.begin() + sizeof packet.head);
    std::vector<std::byte> frame = program_.frame_from(child, datagram);
    // Passed on: a note that the sum is complete. It may be, too, that another processor just added the last.
    if (program_.run(frame) == XdpProgram::Action::drop) return Verdict::added;
    return complete(sequence) ? Verdict::completed : Verdict::outside;
}

bool KernelSlots::complete(std::uint64_t sequence) const { return arrived(sequence) == all_; }

SlotTable::Sum KernelSlots::sum(std::uint64_t sequence, fabric::Outbox& outbox) const {
    const fabric::Head& head = program_.slot(sequence).head;
    const std::span payload(outbox.room(head.bytes), head.bytes);
    program_.copy_sum(sequence, payload);
    return {head, payload, (head.flags & LUWU_CONFLICT) == 0};
}

bool KernelSlots::take_hole(std::uint64_t sequence, fabric::Time now, fabric::Time min_age) {
    if (sequence < base_ || !complete(sequence)) return false;
    std::uint32_t& sent_at = program_.slot(sequence).sent_at;
    const auto age = static_cast<std::int32_t>(luwu_ticks(now) - sent_at);
    if (age < 0 || luwu_nanoseconds(age) < min_age) return false;  // below 0: sent since `now`
    sent_at = luwu_ticks(now);
    return true;
}

void KernelSlots::sent(std::uint64_t sequence, fabric::Time now) {
    program_.slot(sequence).sent_at = luwu_ticks(now);
    luwu_state& state = program_.state();
    state.sent_end = std::max(state.sent_end, sequence + 1);
}

std::uint64_t KernelSlots::sent_end() const { return program_.state().sent_end; }

// Called for every heartbeat of the parent, which is often enough for the paths.
void KernelSlots::release(std::uint64_t ack) {
    base_ = std::max(base_, ack);
    luwu_state& state = program_.state();
    std::atomic_ref(state.base).store(base_, std::memory_order_release);
    std::atomic_ref(state.ready).store(1, std::memory_order_release);
    program_.follow_paths();
}

std::uint64_t KernelSlots::heard(std::uint32_t child) {
    std::uint64_t& at = heard_[child];
    at = std::max(at, base_);
    while (at < end() && (arrived(at) >> child & 1U) != 0) ++at;
    return at;
}

void KernelSlots::report_holes(std::uint32_t child, std::uint64_t next, fabric::Heartbeat& heartbeat) {
    const auto has = [&](std::uint64_t sequence) { return (arrived(sequence) >> child & 1U) != 0; };
    const std::uint64_t until = std::min(next, end());
    for (std::uint64_t at = heard(child); at < until && heartbeat.holes_used < LUWU_MOST_HOLES; ++at) {
        if (has(at)) continue;
        const std::uint64_t first = at;
        while (at < until && !has(at)) ++at;
        heartbeat.holes[heartbeat.holes_used++] = {first, static_cast<std::uint32_t>(at - first),
                                                   LUWU_STREAM_GRADIENTS};
    }
    fabric::close_holes(LUWU_STREAM_GRADIENTS, until, heartbeat);
}

// The program takes nothing between the epochs: the parent's heartbeat, which says that one began, comes to release().
void KernelSlots::begin_epoch(std::uint32_t epoch) {
    luwu_state& state = program_.state();
    std::atomic_ref(state.ready).store(0, std::memory_order_release);
    state.sent_end = 0;
    std::atomic_ref(state.base).store(0, std::memory_order_release);
    std::atomic_ref(state.epoch).store(epoch, std::memory_order_release);
    epoch_ = epoch;
    base_ = 0;
    std::fill(heard_.begin(), heard_.end(), 0);
}

}  // namespace

std::unique_ptr<SlotTable> make_kernel_slots(XdpProgram& program) { return std::make_unique<KernelSlots>(program); }

}  // namespace luwu::switching

#else

namespace luwu::switching {

std::unique_ptr<SlotTable> make_kernel_slots(XdpProgram&) { return nullptr; }

}  // namespace luwu::switching

#endif
