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

void add_socket_counts(nb::dict& stats, const fabric::UdpCounters& counts) {
    nb::dict socket;
    socket["datagrams_sent"] = counts.datagrams_sent;
    socket["bytes_sent"] = counts.bytes_sent;
    socket["datagrams_received"] = counts.datagrams_received;
    socket["bytes_received"] = counts.bytes_received;
    socket["send_calls"] = counts.send_calls;
    socket["receive_calls"] = counts.receive_calls;
    socket["wait_calls"] = counts.wait_calls;
    socket["dropped_full"] = counts.dropped_full;
    socket["dropped_refused"] = counts.dropped_refused;
    socket["dropped_cut"] = counts.dropped_cut;
    socket["receive_errors"] = counts.receive_errors;
    stats["socket"] = socket;
}

}  // namespace luwu::bindings
