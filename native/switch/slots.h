// Where a switch adds up what its children send: one slot for each packet number of a stream's window, all of them
// allocated at the start. One stream of one job.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fabric/packet.h"
#include "fabric/windows.h"
#include "fabric/wiring.h"

namespace luwu::fabric {

class Slots {
  public:
    Slots(luwu_stream stream, const Wiring& wiring, std::uint32_t children, bool ordered);

    enum class Verdict : std::uint8_t {
        added,
        completed,  // the sum of all children is there
        again,      // was there already, and the sum was sent: it is wanted once more
        duplicate,  // was there already; the sum is not, or waits to be sent
        outside,
    };
    Verdict add(std::uint32_t child, const Packet& packet);
    // The sum of a packet that is complete. Its head has count, block and flags; it still needs sealing.
    struct Sum {
        Head head;
        std::span<const std::byte> payload;
        bool checksum_added;  // the head's checksum is the sum of the children's
    };
    [[nodiscard]] bool complete(std::uint64_t sequence) const;
    [[nodiscard]] Sum sum(std::uint64_t sequence) const;
    // Once in `min_age` for a packet that the parent misses: whether its sum is to be sent again.
    [[nodiscard]] bool take_hole(std::uint64_t sequence, Time now, Time min_age);
    void sent(std::uint64_t sequence, Time now) { slot(sequence).sent_at = now; }

    // The server has all below: their slots are free.
    void release(std::uint64_t ack);
    [[nodiscard]] std::uint64_t base() const { return base_; }
    [[nodiscard]] std::uint64_t end() const { return base_ + slots_.size(); }
    [[nodiscard]] const ReceiveWindow& from(std::uint32_t child) const { return arrived_[child]; }
    void reset();

  private:
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t sequence = kFree;
        std::uint32_t children = 0;  // that are in the sum
        Head head{};
        Time sent_at = 0;  // 0: not yet
    };
    [[nodiscard]] Slot& slot(std::uint64_t sequence) { return slots_[sequence % slots_.size()]; }
    [[nodiscard]] const Slot& slot(std::uint64_t sequence) const { return slots_[sequence % slots_.size()]; }
    [[nodiscard]] std::byte* payload(std::uint64_t sequence, std::uint32_t child = 0);
    void add_payload(const Slot& slot, std::uint32_t child, const Packet& packet);
    void add_in_order(const Slot& slot);

    luwu_stream stream_;
    std::uint32_t payload_bytes_;
    std::uint32_t children_;
    bool ordered_;  // floats: keeps every child's part, and adds them in the children's order once all are there
    std::uint64_t base_ = 0;
    std::vector<Slot> slots_;
    std::vector<std::byte> payloads_;
    std::vector<ReceiveWindow> arrived_;  // per child
};

}  // namespace luwu::fabric
