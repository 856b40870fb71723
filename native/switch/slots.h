// Slots in this process, all of them allocated at the start. One stream of one job.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/protocol/windows.h"
#include "fabric/protocol/wiring.h"
#include "switch/slot_table.h"

namespace luwu::switching {

class Slots final : public SlotTable {
  public:
    Slots(luwu_stream stream, const fabric::Wiring& wiring, std::uint32_t children, bool ordered);

    Verdict add(std::uint32_t child, const fabric::Packet& packet) override;
    [[nodiscard]] bool complete(std::uint64_t sequence) const override;
    [[nodiscard]] Sum sum(std::uint64_t sequence, fabric::Outbox& outbox) const override;
    [[nodiscard]] bool take_hole(std::uint64_t sequence, fabric::Time now, fabric::Time min_age) override;
    void sent(std::uint64_t sequence, fabric::Time now) override;
    [[nodiscard]] std::uint64_t sent_end() const override { return sent_end_; }
    [[nodiscard]] fabric::Time sent_at(std::uint64_t sequence) const override {
        return slot(sequence).sequence == sequence ? slot(sequence).sent_at : 0;
    }
    void release(std::uint64_t ack) override;
    [[nodiscard]] std::uint64_t base() const override { return base_; }
    [[nodiscard]] std::uint64_t end() const override { return base_ + slots_.size(); }
    [[nodiscard]] std::uint64_t heard(std::uint32_t child) override { return arrived_[child].ack(); }
    void report_holes(std::uint32_t child, std::uint64_t next, fabric::Heartbeat& heartbeat) override {
        arrived_[child].report_holes(stream_, next, heartbeat);
    }
    void begin_epoch(std::uint32_t epoch) override;

  private:
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t sequence = kFree;
        std::uint32_t children = 0;  // that are in the sum
        fabric::Head head{};
        fabric::Time sent_at = 0;  // 0: not yet
    };
    [[nodiscard]] Slot& slot(std::uint64_t sequence) { return slots_[sequence % slots_.size()]; }
    [[nodiscard]] const Slot& slot(std::uint64_t sequence) const { return slots_[sequence % slots_.size()]; }
    [[nodiscard]] std::byte* payload(std::uint64_t sequence, std::uint32_t child = 0);
    void add_payload(const Slot& slot, std::uint32_t child, const fabric::Packet& packet);
    void add_in_order(const Slot& slot);

    luwu_stream stream_;
    std::uint32_t payload_bytes_;
    std::uint32_t children_;
    bool ordered_;  // floats: keeps every child's part, and adds them in the children's order once all are there
    std::uint64_t base_ = 0;
    std::uint64_t sent_end_ = 0;
    std::vector<Slot> slots_;
    std::vector<std::byte> payloads_;
    std::vector<fabric::ReceiveWindow> arrived_;  // per child
};

}  // namespace luwu::switching
