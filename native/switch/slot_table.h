// Sums of a switch over its children in one stream: one slot for each packet number of the stream's window. In this
// process (switch/slots.h), or inside the kernel (switch/kernel_slots.h).
#pragma once

#include <cstdint>
#include <span>

#include "fabric/protocol/node.h"
#include "fabric/protocol/packet.h"

namespace luwu::switching {

class SlotTable {
  public:
    virtual ~SlotTable() = default;

    enum class Verdict : std::uint8_t {
        added,
        completed,  // the sum of all children is there
        again,      // was there already, and the sum was sent: it is wanted once more
        duplicate,  // was there already; the sum is not, or waits to be sent
        outside,
    };
    virtual Verdict add(std::uint32_t child, const fabric::Packet& packet) = 0;
    // Packets are added without this node's seeing them, and sums are sent at once.
    [[nodiscard]] virtual bool elsewhere() const { return false; }

    // The sum of a packet that is complete. Its head has count, block and flags; it still needs sealing. The payload
    // may lie in the outbox's memory, until that is flushed.
    struct Sum {
        fabric::Head head;
        std::span<const std::byte> payload;
        bool checksum_added;  // the head's checksum is the sum of the children's
    };
    [[nodiscard]] virtual bool complete(std::uint64_t sequence) const = 0;
    [[nodiscard]] virtual Sum sum(std::uint64_t sequence, fabric::Outbox& outbox) const = 0;
    // Once in `min_age` for a packet that the parent misses: whether its sum is to be sent again.
    [[nodiscard]] virtual bool take_hole(std::uint64_t sequence, fabric::Time now, fabric::Time min_age) = 0;
    virtual void sent(std::uint64_t sequence, fabric::Time now) = 0;
    [[nodiscard]] virtual std::uint64_t sent_end() const = 0;  // one past the highest sum that was sent
    // When a sum was last sent; 0 where that is not known.
    [[nodiscard]] virtual fabric::Time sent_at(std::uint64_t /*sequence*/) const { return 0; }

    // The server has all below: their slots are free.
    virtual void release(std::uint64_t ack) = 0;
    [[nodiscard]] virtual std::uint64_t base() const = 0;
    [[nodiscard]] virtual std::uint64_t end() const = 0;
    // All below have arrived from this child; and what is missing below `next`, which it says it has sent.
    [[nodiscard]] virtual std::uint64_t heard(std::uint32_t child) = 0;
    virtual void report_holes(std::uint32_t child, std::uint64_t next, fabric::Heartbeat& heartbeat) = 0;
    virtual void begin_epoch(std::uint32_t epoch) = 0;
};

}  // namespace luwu::switching
