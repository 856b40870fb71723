#include "frame.h"

namespace luwu::wire {
namespace {

constexpr std::uint16_t kIpv4 = 0x0800;
constexpr std::uint16_t kIpv6 = 0x86dd;
constexpr std::size_t kIpv4HeaderBytes = 20;
constexpr std::size_t kIpv6HeaderBytes = 40;
constexpr std::size_t kUdpHeaderBytes = 8;
constexpr std::size_t kTcpHeaderBytes = 20;

std::uint16_t load_16(std::span<const std::uint8_t> bytes, std::size_t at) {
    return static_cast<std::uint16_t>(bytes[at] << 8 | bytes[at + 1]);
}

std::uint64_t add_words(std::span<const std::uint8_t> bytes, std::uint64_t sum = 0) {
    for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) sum += load_16(bytes, at);
    if (bytes.size() % 2 != 0) sum += static_cast<std::uint64_t>(bytes.back()) << 8;
    return sum;
}

std::uint16_t fold(std::uint64_t sum) {
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
}

std::size_t checksum_place(const Segment& segment) { return segment.begin + (segment.protocol == kUdp ? 6 : 16); }

// Over the pseudo header and everything from the UDP or TCP header on: 0xffff when the checksum in it is right.
std::uint16_t sum_of(std::span<const std::uint8_t> frame, const Segment& segment) {
    const std::size_t addresses = segment.ip + (segment.version_6 ? 8 : 12);
    const std::size_t address_bytes = segment.version_6 ? 32 : 8;
    const std::size_t length = segment.end - segment.begin;
    const std::uint64_t sum = add_words(frame.subspan(addresses, address_bytes), length + segment.protocol);
    return fold(add_words(frame.subspan(segment.begin, length), sum));
}

// Finds the end of the IP packet and the protocol in it; false for whatever the wire does not look into.
bool read_ip_header(std::span<const std::uint8_t> frame, Segment& segment) {
    const std::uint16_t type = load_16(frame, 12);
    const std::size_t ip = segment.ip = kEthernetHeaderBytes;
    if (type == kIpv4 && frame.size() >= ip + kIpv4HeaderBytes) {
        const bool fragment = (load_16(frame, ip + 6) & 0x3fff) != 0;  // more to come, or an offset
        segment.begin = ip + 4 * static_cast<std::size_t>(frame[ip] & 0x0f);
        segment.end = ip + load_16(frame, ip + 2);
        segment.protocol = frame[ip + 9];
        return !fragment;
    }
    if (type == kIpv6 && frame.size() >= ip + kIpv6HeaderBytes) {
        segment.version_6 = true;
        segment.begin = ip + kIpv6HeaderBytes;
        segment.end = segment.begin + load_16(frame, ip + 4);
        segment.protocol = frame[ip + 6];  // a header of an extension counts as another protocol
        return true;
    }
    return false;
}

}  // namespace

Segment find_segment(std::span<const std::uint8_t> frame) {
    Segment segment;
    if (frame.size() < kEthernetHeaderBytes || !read_ip_header(frame, segment)) return {};
    const bool udp = segment.protocol == kUdp;
    if (!udp && segment.protocol != kTcp) return {};
    if (segment.end > frame.size() || segment.begin + (udp ? kUdpHeaderBytes : kTcpHeaderBytes) > segment.end)
        return {};
    const std::size_t header_bytes =
        udp ? kUdpHeaderBytes : 4 * static_cast<std::size_t>(frame[segment.begin + 12] >> 4);
    segment.payload = segment.begin + header_bytes;
    if (segment.payload > segment.end) return {};
    segment.source_port = load_16(frame, segment.begin);
    segment.destination_port = load_16(frame, segment.begin + 2);
    return segment;
}

bool checksums_are_valid(std::span<const std::uint8_t> frame, const Segment& segment) {
    if (segment.protocol == 0) return true;
    if (!segment.version_6 && fold(add_words(frame.subspan(segment.ip, segment.begin - segment.ip))) != 0xffff) {
        return false;
    }
    const bool none = segment.protocol == kUdp && !segment.version_6 && load_16(frame, checksum_place(segment)) == 0;
    return none || sum_of(frame, segment) == 0xffff;
}

void fix_checksum(std::span<std::uint8_t> frame, const Segment& segment) {
    const std::size_t place = checksum_place(segment);
    if (segment.protocol == kUdp && load_16(frame, place) == 0) return;
    frame[place] = frame[place + 1] = 0;
    auto checksum = static_cast<std::uint16_t>(~sum_of(frame, segment));
    if (checksum == 0 && segment.protocol == kUdp) checksum = 0xffff;  // 0 would say that there is none
    frame[place] = static_cast<std::uint8_t>(checksum >> 8);
    frame[place + 1] = static_cast<std::uint8_t>(checksum & 0xff);
}

}  // namespace luwu::wire
