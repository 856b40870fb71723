// A UDP socket for many datagrams at a time: one system call receives a batch, and where the kernel has GRO, one buffer
// of the batch holds a run of datagrams of one sender. Sending is in fabric/udp/udp_outbox.h. One thread uses a socket
// at a time.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabric/core/descriptor.h"
#include "fabric/protocol/node.h"
#include "store/error.h"

namespace luwu::fabric {

// The longest datagrams that are neither fragmented nor jumbograms (RFC 768, RFC 8200), without their UDP header.
inline constexpr std::uint32_t kMostPayloadIpv4Bytes = 65'507;
inline constexpr std::uint32_t kMostPayloadIpv6Bytes = 65'527;

struct UdpSettings {
    std::uint32_t receive_buffers = 16;             // received into at a time
    std::uint32_t buffer_bytes = 65'536;            // of each; below 65,536 there is no GRO
    std::uint32_t kernel_receive_bytes = 16 << 20;  // asked for; UdpSocket::kernel_receive_bytes() is what was got
    std::uint32_t kernel_send_bytes = 4 << 20;
    bool merge_on_receive = true;  // GRO, where the kernel has it
    bool segment_on_send = true;   // GSO, where the kernel has it
    int multicast_hops = 1;        // how many networks a datagram to a group may pass: 1 stays in the first
};

struct UdpStats {
    std::uint64_t datagrams_sent = 0;
    std::uint64_t bytes_sent = 0;  // payload
    std::uint64_t datagrams_received = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t send_calls = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t wait_calls = 0;          // for room in the kernel's send buffer, and for something to do
    std::uint64_t dropped_full = 0;        // datagrams: the send buffer stayed full
    std::uint64_t dropped_refused = 0;     // datagrams: the kernel would not send them
    std::uint64_t dropped_cut = 0;         // messages received that were longer than a buffer
    std::uint64_t dropped_unread = 0;      // datagrams that found the kernel's receive buffer full
    std::uint64_t receive_errors = 0;      // reported by the network, such as an unreachable port
    std::uint64_t segmenting_refused = 0;  // runs that had to be sent one by one after all
    int last_refusal = 0;                  // errno of the last dropped_refused
};

[[nodiscard]] Error network_error(const std::string& action, const Address& address, int error_number);

// The address of this machine that datagrams to `to` come from, without a port. Throws Error(io).
[[nodiscard]] Address address_towards(const Address& to);

class UdpSocket {
  public:
    // Port 0 is the kernel's choice, and 0.0.0.0 or :: every address (:: takes IPv4 too). Throws Error(io) and
    // Error(permission).
    explicit UdpSocket(const Address& bound, const UdpSettings& settings = {});

    // Also receives what is sent to this group and its port, through a second descriptor, so that unicast stays apart
    // and several processes of a host can join. The interface is that of the bound address. Throws Error.
    void join(const Address& group);

    // Receives one batch, without waiting. Returns true if there may be more. The batch before is gone.
    bool receive();
    // deliver(const Address& from, const Datagram& datagram) for each datagram of the batch.
    template <class Deliver>
    void each(Deliver&& deliver) const {
        for (std::size_t i = 0; i < received_.size(); ++i) {
            const Received& run = received_[i];
            for (std::size_t at = 0; at == 0 || at < run.bytes; at += run.segment_bytes) {
                const std::span bytes(run.data + at, std::min(run.segment_bytes, run.bytes - at));
                deliver(*run.from, Datagram(bytes, run.marked));
            }
        }
    }

    // Lets queues on the way mark what is sent from now on, instead of losing it, or not (RFC 3168).
    void let_mark(bool may_mark) const;

    // The longest datagram that reaches `to` in one packet, as far as the kernel knows the path. Throws Error(io).
    [[nodiscard]] std::uint32_t payload_limit(const Address& to) const;

    [[nodiscard]] const Address& bound() const { return bound_; }  // with the port
    [[nodiscard]] int descriptor() const { return socket_.get(); }
    [[nodiscard]] int group_descriptor() const { return group_.get(); }  // -1: no group
    [[nodiscard]] const UdpSettings& settings() const { return settings_; }
    [[nodiscard]] bool merges() const { return merges_; }
    [[nodiscard]] bool segments() const { return segments_; }
    [[nodiscard]] std::uint32_t kernel_receive_bytes() const;
    [[nodiscard]] std::uint32_t kernel_send_bytes() const;
    [[nodiscard]] std::uint64_t kernel_drops() const;  // datagrams that found the kernel's receive buffer full
    [[nodiscard]] UdpStats& stats() { return stats_; }
    [[nodiscard]] const UdpStats& stats() const { return stats_; }

  private:
    struct Received {
        const Address* from;
        const std::byte* data;
        std::size_t bytes;
        std::size_t segment_bytes;
        bool marked;  // the first of them; some kernels before 6.10 put others together with it
    };

    [[nodiscard]] bool receive_from(int descriptor, std::size_t& filled);
    void take(std::size_t index, std::size_t bytes);

    UdpSettings settings_;
    Address bound_;
    Descriptor socket_;
    Descriptor group_;
    bool merges_ = false;
    bool segments_ = false;
    bool group_first_ = false;
    UdpStats stats_;
    std::unique_ptr<std::byte[]> memory_;
    std::vector<Address> senders_;
    std::vector<iovec> pieces_;
    std::vector<std::array<std::byte, 64>> controls_;  // room for what the kernel says of a run: length and marks
    std::vector<mmsghdr> headers_;
    std::vector<Received> received_;
};

}  // namespace luwu::fabric
