#include "bindings/udp.h"

namespace nb = nanobind;

namespace luwu::bindings {

nb::dict dict_of(const fabric::PacketDrops& drops) {
    nb::dict result;
    for (std::size_t reason = 0; reason < drops.size(); ++reason) {
        result[name_of(static_cast<fabric::PacketDrop>(reason))] = drops[reason];
    }
    return result;
}

void add_socket_stats(nb::dict& result, const fabric::UdpStats& stats) {
    nb::dict socket;
    socket["datagrams_sent"] = stats.datagrams_sent;
    socket["bytes_sent"] = stats.bytes_sent;
    socket["datagrams_received"] = stats.datagrams_received;
    socket["bytes_received"] = stats.bytes_received;
    socket["send_calls"] = stats.send_calls;
    socket["receive_calls"] = stats.receive_calls;
    socket["wait_calls"] = stats.wait_calls;
    socket["dropped_full"] = stats.dropped_full;
    socket["dropped_refused"] = stats.dropped_refused;
    socket["dropped_cut"] = stats.dropped_cut;
    socket["dropped_unread"] = stats.dropped_unread;
    socket["receive_errors"] = stats.receive_errors;
    result["socket"] = socket;
}

}  // namespace luwu::bindings
