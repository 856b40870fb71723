// The server's part of the network fabric: the root of the tree. It has one child, which speaks for all workers.
// Called by one thread at a time.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "fabric/protocol/link.h"
#include "fabric/protocol/windows.h"
#include "fabric/protocol/wiring.h"

namespace luwu::fabric {

// Called from within receive() and advance(): short, and not calling back.
struct ServerEvents {
    std::function<void(std::uint64_t pull, std::uint32_t block)> wanted;  // all workers pull it: answer with offer()
    std::function<void(std::uint32_t block)> delivered;                   // all have it: its memory is free
    std::function<float*(std::uint32_t block)> memory;  // for the sum of a block's gradients; null: none is free now
    std::function<void(std::uint32_t block, float* sum)> collected;
    std::function<void(const std::string& what)> broken;  // the workers do not agree, or break the protocol
};

struct ServerNodeStats {
    std::uint64_t packets_in = 0;
    std::uint64_t bytes_in = 0;  // of datagrams
    std::uint64_t packets_out = 0;
    std::uint64_t bytes_out = 0;
    std::uint64_t resent = 0;
    std::uint64_t heartbeats_in = 0;
    std::uint64_t heartbeats_out = 0;
    PacketDrops drops{};
};

class ServerNode final : public Node {
  public:
    // `group`: where parameters go instead of to the child, if known: a multicast group of all workers.
    ServerNode(const Wiring& wiring, const Address& child, const Address& group, ServerEvents events);

    // The parameters of a block that is wanted, in any order. They stay until the event `delivered`. `pull` counts from
    // 0 in every epoch.
    void offer(std::uint64_t pull, const std::byte* parameters);
    // Drops what is under way and starts every stream anew. The memory of sums that were not collected is the caller's
    // again, and that of the blocks it returns: those offered and not delivered.
    std::vector<std::uint32_t> begin_epoch();

    void receive(const Address& from, const Datagram& datagram, Time now, Outbox& outbox) override;
    [[nodiscard]] bool may_be_marked() const override { return link_.counts_marks(); }
    Time advance(Time now, Outbox& outbox) override;

    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] ServerNodeStats stats() const;
    [[nodiscard]] Time heard_at() const { return link_.heard_at(); }

  private:
    struct Delivery {
        Message message;
        const std::byte* parameters;  // null until offered
    };
    struct Collection {
        Message exponents;
        Message gradient;
        float* sum;
        std::vector<std::uint8_t> agreed;
    };

    void drop(PacketDrop reason) { ++stats_.drops[static_cast<std::size_t>(reason)]; }
    void take_heartbeat(const Packet& packet, Time now);
    void take_request(const Packet& packet);
    void take_exponents(const Packet& packet);
    void take_gradient(const Packet& packet);
    [[nodiscard]] bool agree_on_exponents();
    [[nodiscard]] bool start_collection(std::uint32_t block);
    void finish_collections();
    [[nodiscard]] std::uint64_t ready_parameters() const;
    [[nodiscard]] std::uint64_t under_way() const {
        return parameters_.next() - std::min(parameters_.next(), link_.arrived(LUWU_STREAM_PARAMETERS));
    }

    void send_agreed(Time now, Outbox& outbox);
    void send_parameters(Time now, Outbox& outbox);
    void send(const Address& to, Head& head, std::span<const std::byte> payload, Outbox& outbox);
    void send_heartbeat(Time now, Outbox& outbox);

    Wiring wiring_;
    Seal seal_;
    Link link_;
    Address group_;
    ServerEvents events_;
    std::uint32_t epoch_;
    bool broken_ = false;

    ReceiveWindow requests_;
    std::vector<std::uint32_t> requested_;  // by sequence modulo the window: the block
    std::deque<Delivery> deliveries_;
    std::uint64_t delivered_ = 0;  // deliveries before the first in the list
    std::uint64_t requests_taken_ = 0;
    std::uint64_t parameters_end_ = 0;
    SendWindow parameters_;

    ReceiveWindow exponents_;
    SendWindow agreed_;
    struct Stored {
        Head head;
        std::vector<std::byte> payload;
    };
    std::vector<Stored> stored_;      // by sequence modulo the window: kept until all workers have the answer
    std::uint64_t agreed_ready_ = 0;  // answers below may be sent

    ReceiveWindow gradients_;
    std::deque<Collection> collections_;
    std::uint64_t exponents_end_ = 0;
    std::uint64_t gradients_end_ = 0;
    ServerNodeStats stats_;
};

}  // namespace luwu::fabric
