// Interface between a participant of the network fabric and the loop that runs it: packets and the time go in, packets
// come out. A node knows no socket and no clock, so the same code runs over UDP (fabric/udp/node_loop.h) and over a
// simulated network in the tests.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/core/address.h"

namespace luwu::fabric {

using Time = std::uint64_t;  // nanoseconds of a monotonic clock; no two hosts' clocks are compared
inline constexpr Time kMillisecond = 1'000'000;

// A datagram that has arrived. Marked: a queue on its way was growing long (congestion experienced, RFC 3168).
struct Datagram {
    template <std::convertible_to<std::span<const std::byte>> Bytes>
    Datagram(const Bytes& bytes_, bool marked_ = false) : bytes(bytes_), marked(marked_) {}
    operator std::span<const std::byte>() const { return bytes; }

    std::span<const std::byte> bytes;
    bool marked;
};

class Outbox {
  public:
    virtual ~Outbox() = default;
    // Queues one datagram: `head` is copied now, `body` is read when the loop flushes, before it receives again.
    virtual void send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) = 0;
    // Memory for a body, until the next flush. May flush what is queued to make room; what was sent before stays valid
    // only as `send` says, so write into it and send it before asking for more.
    virtual std::byte* room(std::size_t bytes) = 0;
};

class Node {
  public:
    virtual ~Node() = default;
    // The datagram's memory stays until the next advance() has been flushed.
    virtual void receive(const Address& from, const Datagram& datagram, Time now, Outbox& outbox) = 0;
    // Sends what is due. Returns when it wants to be called again at the latest, even if nothing arrives.
    virtual Time advance(Time now, Outbox& outbox) = 0;
    // True if all that this node sends goes to nodes that tell how much of it was marked: queues may mark it.
    [[nodiscard]] virtual bool may_be_marked() const = 0;
};

}  // namespace luwu::fabric
