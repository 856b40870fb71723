// Common parts of the bindings of everything that speaks UDP.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <tuple>

#include "fabric/core/address.h"
#include "fabric/protocol/packet.h"
#include "fabric/protocol/wiring.h"
#include "fabric/udp/datagrams.h"

namespace luwu::bindings {

using HostAndPort = std::tuple<std::string, std::uint16_t>;

[[nodiscard]] inline fabric::Address make_address(const HostAndPort& place) {
    return fabric::parse_address(std::get<0>(place), std::get<1>(place));
}
[[nodiscard]] inline fabric::Address make_address(const std::optional<HostAndPort>& place) {
    return place ? make_address(*place) : fabric::Address{};  // nobody
}
[[nodiscard]] nanobind::dict dict_of(const fabric::PacketDrops& drops);
void add_socket_stats(nanobind::dict& result, const fabric::UdpStats& stats);

// Stats of a node of the tree and of its socket; empty before its network has started.
template <class Self>
[[nodiscard]] nanobind::dict network_stats(Self& self) {
    nanobind::dict stats;
    if (const auto node = self.node_stats()) {
        stats["packets_in"] = node->packets_in;
        stats["packets_out"] = node->packets_out;
        if constexpr (requires { node->bytes_in; }) {
            stats["bytes_in"] = node->bytes_in;
            stats["bytes_out"] = node->bytes_out;
        }
        if constexpr (requires { node->resent; }) {
            stats["resent"] = node->resent;
        } else {
            stats["sums_sent"] = node->sums_sent;
            stats["sums_sent_again"] = node->sums_sent_again;
            stats["state_bytes"] = node->state_bytes;
        }
        stats["heartbeats_in"] = node->heartbeats_in;
        stats["heartbeats_out"] = node->heartbeats_out;
        stats["drops"] = dict_of(node->drops);
    }
    if (const auto socket = self.socket_stats()) add_socket_stats(stats, *socket);
    return stats;
}

}  // namespace luwu::bindings
