// An Ethernet frame as the wire sees it: the beginning of UDP or TCP over IPv4 or IPv6 in it, and its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace luwu::wire {

constexpr std::size_t kEthernetHeaderBytes = 14;
constexpr std::uint8_t kTcp = 6;
constexpr std::uint8_t kUdp = 17;

// A whole UDP datagram or TCP segment in a frame. Places count from the frame's first byte.
struct Segment {
    std::uint8_t protocol = 0;  // kTcp, kUdp, or 0: anything else, a fragment too, which always passes unharmed
    bool version_6 = false;
    std::size_t ip = 0;
    std::size_t begin = 0;  // of the UDP or TCP header
    std::size_t payload = 0;
    std::size_t end = 0;  // without Ethernet's padding
    std::uint16_t source_port = 0;
    std::uint16_t destination_port = 0;

    [[nodiscard]] std::size_t payload_bytes() const { return end - payload; }
};

Segment find_segment(std::span<const std::uint8_t> frame);

// Checks the IPv4 header's checksum, if there is one, and that of the datagram or segment.
bool checksums_are_valid(std::span<const std::uint8_t> frame, const Segment& segment);

// Writes the checksum that fits the payload; leaves a UDP datagram alone that was sent without one.
void fix_checksum(std::span<std::uint8_t> frame, const Segment& segment);

}  // namespace luwu::wire
