// Common parts of the tests of datagrams and of node loops: sockets on the loopback interface, and all that arrives at
// one.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabric/core/address.h"
#include "fabric/udp/datagrams.h"
#include "fabric/udp/udp_outbox.h"

namespace luwu::test {

using Bytes = std::vector<std::byte>;
inline constexpr int kPatienceMs = 20'000;  // for what must come; only a failing test waits this long

inline fabric::Address loopback(std::uint16_t port = 0) { return fabric::parse_address("127.0.0.1", port); }

inline Bytes pattern(std::size_t bytes, unsigned seed) {
    Bytes out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251 + seed * 31);
    return out;
}

// The addresses of this machine that tests can use: 127.0.0.1, and ::1 where there is IPv6.
inline std::vector<fabric::Address> loopbacks() {
    std::vector<fabric::Address> out{loopback()};
    try {
        const fabric::Address ipv6 = fabric::parse_address("::1", 0);
        const fabric::UdpSocket tried(ipv6);
        out.push_back(ipv6);
    } catch (const Error& error) {
        MESSAGE("without IPv6: " << std::string(error.what()));
    }
    return out;
}

// Waits until `count` datagrams have come; fewer after a long time.
inline std::vector<std::pair<fabric::Address, Bytes>> receive(fabric::UdpSocket& socket, std::size_t count) {
    std::vector<std::pair<fabric::Address, Bytes>> out;
    while (out.size() < count) {
        std::array<pollfd, 2> waited{{{socket.descriptor(), POLLIN, 0}, {socket.group_descriptor(), POLLIN, 0}}};
        if (poll(waited.data(), waited.size(), kPatienceMs) <= 0) break;
        socket.receive();
        socket.each([&](const fabric::Address& from, std::span<const std::byte> datagram) {
            out.emplace_back(from, Bytes(datagram.begin(), datagram.end()));
        });
    }
    return out;
}

inline std::vector<Bytes> receive_bytes(fabric::UdpSocket& socket, std::size_t count) {
    std::vector<Bytes> out;
    for (auto& [from, datagram] : receive(socket, count)) out.push_back(std::move(datagram));
    return out;
}

// Datagrams that are told apart, of these sizes.
inline std::vector<Bytes> patterns(const std::vector<std::size_t>& sizes) {
    std::vector<Bytes> out;
    for (const std::size_t bytes : sizes) out.push_back(pattern(bytes, static_cast<unsigned>(out.size())));
    return out;
}

// Queues datagrams cut into head and body; the bodies are read when `outbox` flushes.
inline void send(fabric::UdpOutbox& outbox, const fabric::Address& to, const std::vector<Bytes>& datagrams,
                 std::size_t head_bytes) {
    for (const Bytes& datagram : datagrams) {
        const std::size_t head = std::min(head_bytes, datagram.size());
        Bytes copy(datagram.begin(), datagram.begin() + static_cast<std::ptrdiff_t>(head));
        outbox.send(to, copy, std::span(datagram).subspan(head));
        std::fill(copy.begin(), copy.end(), std::byte{0xee});  // heads are copied at once, bodies are not
    }
}

}  // namespace luwu::test
