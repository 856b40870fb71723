// A worker's part of the network fabric: the leaf of the tree. Called by one thread at a time.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "fabric/protocol/link.h"
#include "fabric/protocol/windows.h"
#include "fabric/protocol/wiring.h"

namespace luwu::fabric {

// Called from within receive() and advance(): short, and not calling back.
struct WorkerEvents {
    std::function<void()> pulled;       // the oldest pull is complete
    std::function<void()> pushed;       // the oldest push has arrived at the server
    std::function<void()> interrupted;  // a new epoch began: pulls and pushes under way were dropped
};

struct WorkerNodeStats {
    std::uint64_t packets_in = 0;
    std::uint64_t packets_out = 0;
    std::uint64_t resent = 0;
    std::uint64_t heartbeats_in = 0;
    std::uint64_t heartbeats_out = 0;
    PacketDrops drops{};
};

class WorkerNode final : public Node {
  public:
    WorkerNode(const Wiring& wiring, const Address& parent, std::uint16_t child, WorkerEvents events);

    // All workers pull the same blocks in the same order. `memory` takes the whole block and stays until the event.
    void pull(std::uint32_t block, std::byte* memory);
    // The same order at all workers. `gradient` (in the block's dtype) stays until the event. `exponents` are of
    // its groups (kernels::fixed_exponents).
    void push(std::uint32_t block, const std::byte* gradient, std::vector<std::uint8_t> exponents);

    // The server says that this epoch has begun: as if its heartbeat had said so. An older one changes nothing.
    void enter_epoch(std::uint32_t epoch);

    void receive(const Address& from, const Datagram& datagram, Time now, Outbox& outbox) override;
    [[nodiscard]] bool may_be_marked() const override { return link_.counts_marks(); }
    Time advance(Time now, Outbox& outbox) override;

    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] WorkerNodeStats stats() const;
    [[nodiscard]] Time heard_at() const { return link_.heard_at(); }

  private:
    struct Pull {
        Message message;
        std::byte* memory;
    };
    struct Push {
        Message exponents;
        Message gradient;
        const std::byte* values;
        std::vector<std::uint8_t> own;
        std::vector<std::uint8_t> agreed;
    };

    void drop(PacketDrop reason) { ++stats_.drops[static_cast<std::size_t>(reason)]; }
    void take_heartbeat(const Packet& packet, Time now);
    void take_parameters(const Packet& packet);
    void take_agreed(const Packet& packet);
    [[nodiscard]] bool fits(const Packet& packet, const Message& message) const;
    [[nodiscard]] Push* push_of_exponents(std::uint64_t sequence);
    [[nodiscard]] Push* push_of_gradient(std::uint64_t sequence);
    [[nodiscard]] std::uint64_t ready_gradients() const;
    [[nodiscard]] std::uint64_t under_way() const;
    void encode(const Push& push, std::uint64_t first, std::uint64_t elements, std::byte* mantissas) const;

    void send_requests(Time now, Outbox& outbox);
    void send_exponents(Time now, Outbox& outbox);
    void send_gradients(Time now, Outbox& outbox);
    void send(Head& head, std::span<const std::byte> payload, Outbox& outbox);
    void send_heartbeat(Time now, Outbox& outbox);

    Wiring wiring_;
    Seal seal_;
    Link link_;
    WorkerEvents events_;
    std::uint32_t epoch_;
    SendWindow requests_;
    SendWindow exponents_;
    SendWindow gradients_;
    ReceiveWindow parameters_;
    ReceiveWindow agreed_;
    std::deque<Pull> pulls_;
    std::uint64_t pulls_done_ = 0;
    std::uint64_t parameters_end_ = 0;  // of what was pulled
    std::deque<Push> pushes_;
    std::uint64_t exponents_end_ = 0;
    std::uint64_t gradients_end_ = 0;
    WorkerNodeStats stats_;
};

}  // namespace luwu::fabric
