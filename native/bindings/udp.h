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
void add_socket_counts(nanobind::dict& stats, const fabric::UdpCounters& counts);

// Counts of a node of the tree and of its socket; empty before its network has started.
template <class Self>
[[nodiscard]] nanobind::dict network_stats(Self& self) {
    nanobind::dict stats;
    if (const auto counts = self.counts()) {
        stats["packets_in"] = counts->packets_in;
        stats["packets_out"] = counts->packets_out;
        if constexpr (requires { counts->bytes_in; }) {
            stats["bytes_in"] = counts->bytes_in;
            stats["bytes_out"] = counts->bytes_out;
        }
        if constexpr (requires { counts->resent; }) {
            stats["resent"] = counts->resent;
        } else {
            stats["sums_sent"] = counts->sums_sent;
            stats["sums_sent_again"] = counts->sums_sent_again;
            stats["state_bytes"] = counts->state_bytes;
        }
        stats["heartbeats_in"] = counts->heartbeats_in;
        stats["heartbeats_out"] = counts->heartbeats_out;
        stats["drops"] = dict_of(counts->drops);
    }
    if (const auto counts = self.socket_counts()) add_socket_counts(stats, *counts);
    return stats;
}

}  // namespace luwu::bindings
