// The XDP switch without a network: frames go in through BPF_PROG_TEST_RUN, frames come out.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fabric/core/address.h"
#include "fabric/protocol/packet.h"
#include "switch/xdp_program.h"

namespace luwu::test {

using fabric::Head;
using switching::XdpProgram;
using Action = XdpProgram::Action;
using Bytes = std::vector<std::byte>;

inline constexpr std::size_t kFrameHead = 14 + 20 + 8;  // Ethernet, IPv4, UDP
inline constexpr std::uint16_t kOwnPort = 7071;
inline constexpr std::uint16_t kChild = 5;  // the switch's number among its parent's children

// Why the program cannot run here, or "".
[[nodiscard]] const std::string& xdp_refused();
// Every case begins with it: where the kernel refuses the program, that is said.
[[nodiscard]] bool can_run_xdp();

inline fabric::Wiring xdp_wiring(std::uint32_t payload_bytes = 1024, luwu_form form = LUWU_INT32) {
    fabric::Wiring wiring;
    wiring.job = 77;
    wiring.key = 0x1234567890abcdef;
    wiring.epoch = 3;
    wiring.workers = 8;
    wiring.payload_bytes = payload_bytes;
    wiring.form = form;
    wiring.window = {64, 8, 8, 24};
    return wiring;
}

inline switching::XdpPlace xdp_place(std::uint32_t children) {
    switching::XdpPlace place{
        fabric::parse_address("10.0.0.1", kOwnPort), fabric::parse_address("10.0.0.2", 7070), kChild, {}};
    place.interfaces_end = 2;  // frames arrive at the first, which BPF_PROG_TEST_RUN uses
    for (std::uint32_t i = 0; i < children; ++i) {
        place.children.push_back(
            fabric::parse_address("10.0.1." + std::to_string(i), static_cast<std::uint16_t>(i + 1)));
    }
    return place;
}

// A packet of a child, before it is sealed.
struct Sent {
    Head head{};
    Bytes payload;
};

inline Bytes datagram_of(const Head& head, std::span<const std::byte> payload) {
    Bytes datagram(sizeof head + payload.size());
    std::memcpy(datagram.data(), &head, sizeof head);
    std::copy(payload.begin(), payload.end(), datagram.begin() + sizeof head);
    return datagram;
}

class XdpRig {
  public:
    explicit XdpRig(std::uint32_t children, const fabric::Wiring& wiring = xdp_wiring())
        : wiring(wiring), seal(wiring.job, wiring.key, wiring.payload_bytes), program(wiring, xdp_place(children)) {
        program.state().ready = 1;
        program.path(LUWU_XDP_PARENT) = {{2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 1}, kParentInterface, 1};
    }

    [[nodiscard]] Sent gradient(std::uint32_t child, std::uint64_t sequence, Bytes payload, luwu_form form) const {
        Sent sent{{}, std::move(payload)};
        sent.head.kind = LUWU_GRADIENTS;
        sent.head.form = static_cast<std::uint8_t>(form);
        sent.head.epoch = wiring.epoch;
        sent.head.sender = static_cast<std::uint16_t>(child);
        sent.head.count = static_cast<std::uint16_t>(child + 1);
        sent.head.sequence = sequence;
        sent.head.block = 4;
        sent.head.index = static_cast<std::uint32_t>(sequence);
        return sent;
    }
    // The frame of a packet from that peer.
    [[nodiscard]] Bytes frame(std::uint32_t peer, Sent sent) const {
        seal.close(sent.head, sent.payload);
        return program.frame_from(peer, datagram_of(sent.head, sent.payload));
    }
    Action send(std::uint32_t peer, const Sent& sent) {
        last = frame(peer, sent);
        return program.run(last);
    }
    // Opens the last frame, if it is a whole packet of the job.
    [[nodiscard]] bool open(fabric::Packet& packet) const {
        fabric::PacketDrops drops{};
        return seal.open(std::span(last).subspan(kFrameHead), packet, drops);
    }

    static constexpr std::uint32_t kParentInterface = 99;
    fabric::Wiring wiring;
    fabric::Seal seal;
    XdpProgram program;
    Bytes last;
};

// The sum in a slot.
inline Bytes sum_in(XdpProgram& program, std::uint64_t sequence) {
    Bytes sum(program.slot(sequence).head.bytes);
    program.copy_sum(sequence, sum);
    return sum;
}

// Mantissas that can be added over all workers without overflow.
inline Bytes mantissas(std::mt19937_64& random, std::size_t bytes, luwu_form form, int children) {
    Bytes made(bytes);
    const auto fill = [&](auto example) {
        using Value = decltype(example);
        const auto most = std::numeric_limits<Value>::max() / children;
        for (std::size_t i = 0; i + sizeof(Value) <= bytes; i += sizeof(Value)) {
            const auto value = static_cast<Value>(std::uniform_int_distribution<int>(-most, most)(random));
            std::memcpy(made.data() + i, &value, sizeof value);
        }
    };
    form == LUWU_INT16 ? fill(std::int16_t{}) : fill(std::int32_t{});
    return made;
}

}  // namespace luwu::test
