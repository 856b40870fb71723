// What the bindings of everything that speaks UDP have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>

#include "fabric/address.h"
#include "fabric/datagrams.h"
#include "fabric/packet.h"
#include "fabric/wiring.h"

namespace luwu::bindings {

using HostAndPort = std::tuple<std::string, std::uint16_t>;

[[nodiscard]] inline fabric::Address make_address(const HostAndPort& place) {
    return fabric::parse_address(std::get<0>(place), std::get<1>(place));
}
[[nodiscard]] nanobind::dict dict_of(const fabric::PacketDrops& drops);
void add_socket_counts(nanobind::dict& stats, const fabric::UdpCounters& counts);

}  // namespace luwu::bindings
