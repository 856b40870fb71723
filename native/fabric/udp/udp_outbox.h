// Queue of packets from nodes to a UDP socket, sent in few system calls: many messages in a call (sendmmsg), and many
// datagrams in a message where the kernel has GSO. UDP may lose packets, so nothing here throws or waits for long: a
// packet that cannot be sent is dropped and counted (fabric/udp/datagrams.h), and the protocol repairs the loss.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fabric/protocol/node.h"
#include "fabric/udp/datagrams.h"

namespace luwu::fabric {

class UdpOutbox final : public Outbox {
  public:
    using SendCall = int (*)(int, mmsghdr*, unsigned, int);  // sendmmsg, or a test's

    // `longest_wait`: how long one flush may wait for room in the kernel's send buffer, in all.
    explicit UdpOutbox(UdpSocket& socket, std::chrono::nanoseconds longest_wait = std::chrono::milliseconds(20),
                       SendCall send_call = &sendmmsg);

    // Datagrams one after another to the same address and of the same length (the last may be shorter) leave as one
    // message; memory that lies directly behind what was sent before becomes one piece with it.
    void send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) override;
    std::byte* room(std::size_t bytes) override;
    // Afterwards no body is read again, and all memory from room() is given back.
    void flush();

  private:
    struct Run {  // of datagrams that leave as one message
        std::uint32_t segments;
        std::uint32_t segment_bytes;
        std::uint32_t bytes;
    };

    void drain();
    [[nodiscard]] bool joins_last_run(const Address& to, std::uint32_t bytes) const;
    void begin_run(const Address& to, std::uint32_t bytes);
    void add_piece(const std::byte* data, std::size_t bytes);
    std::size_t transmit(std::span<mmsghdr> messages, int& error_number);
    [[nodiscard]] bool wait_for_room();
    [[nodiscard]] bool send_one_by_one(std::size_t index);
    void count_refused(std::uint32_t datagrams, int error_number);

    UdpSocket& socket_;
    UdpStats& stats_;
    std::chrono::nanoseconds longest_wait_;
    std::uint64_t wait_until_ns_ = 0;  // of this drain; 0: has not waited yet
    SendCall send_call_;
    bool segmenting_;

    std::size_t queued_ = 0;  // runs; the arrays below have room for the most
    std::vector<Run> runs_;
    std::vector<mmsghdr> headers_;
    std::vector<sockaddr_in6> addresses_;
    struct alignas(cmsghdr) Control {
        std::array<std::byte, CMSG_SPACE(sizeof(std::uint16_t))> bytes;
    };
    std::vector<Control> controls_;
    std::size_t piece_count_ = 0;
    std::vector<iovec> pieces_;
    std::size_t head_bytes_ = 0;
    std::unique_ptr<std::byte[]> heads_;
    std::size_t room_bytes_ = 0;  // given out
    std::vector<std::byte> room_;
    std::vector<iovec> single_pieces_;
};

}  // namespace luwu::fabric
