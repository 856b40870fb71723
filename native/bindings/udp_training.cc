#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/network_parts.h"
#include "bindings/udp.h"
#include "bindings/without_gil.h"
#include "fabric/udp/udp_server.h"
#include "fabric/udp/udp_worker.h"
#include "standby/sender.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

// A bound socket that a UdpWorker takes over.
struct UdpPlace {
    std::optional<fabric::UdpSocket> socket;
    std::uint16_t port;
};

std::unique_ptr<WithoutGil<fabric::UdpServer>> make_server(
    const std::vector<std::string>& folders, const std::string& uuid, bool create, const std::vector<BlockSpec>& blocks,
    std::uint64_t chunk_elements, const std::string& optimizer, std::uint64_t memory_bytes, std::uint32_t workers,
    std::uint32_t optimizer_threads, const std::string& address, std::uint16_t port, std::uint64_t job,
    const std::string& udp_address, std::uint16_t udp_port, const fabric::Timing& timing,
    const std::optional<TlsFiles>& tls, bool one_of_several, std::optional<std::uint64_t> at_step,
    const Snapshots& snapshots, double disk_full_wait_seconds, const Durable& durable, std::uint32_t trims,
    std::shared_ptr<standby::Sender> standby) {
    fabric::ServerSettings settings =
        make_server_settings(folders, uuid, create, blocks, chunk_elements, optimizer, memory_bytes, workers,
                             optimizer_threads, snapshots, disk_full_wait_seconds, durable, trims);
    settings.one_of_several = one_of_several;
    settings.at_step = at_step;
    settings.replica = std::move(standby);
    const fabric::TcpSettings tcp{address, port, job, make_tls(tls), timing};
    const nb::gil_scoped_release release;
    return std::make_unique<WithoutGil<fabric::UdpServer>>(
        std::move(settings), tcp, fabric::parse_address(udp_address, udp_port), fabric::UdpSettings{});
}

nb::dict server_stats(WithoutGil<fabric::UdpServer>& self) {
    nb::dict stats = tcp_stats_of(self.side());
    stats["network"] = network_stats(self);
    return stats;
}

void bind_server(nb::module_& module) {
    using Self = WithoutGil<fabric::UdpServer>;
    nb::class_<Self> type(module, "UdpServer",
                          "The server of workers whose steps come over UDP, through switches; the rest over TCP.");
    bind_core(type, [](auto& self) -> auto& { return self.side().core(); });
    type.def(nb::new_(&make_server), "folders"_a, "uuid"_a, "create"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a,
             "memory_bytes"_a, "workers"_a, "optimizer_threads"_a, "address"_a, "port"_a, "job"_a, "udp_address"_a,
             "udp_port"_a, "timing"_a, "tls"_a = nb::none(), "one_of_several"_a = false, "at_step"_a = nb::none(),
             "snapshots"_a = Snapshots{}, "disk_full_wait_seconds"_a = 0.0, "durable"_a = kEachStep, "trims"_a = 0,
             "standby"_a = nb::none(), "As TcpServer; udp_address is numeric, and port 0 the kernel's choice.")
        .def_prop_ro("port", [](const Self& self) { return self.side().port(); })
        .def_prop_ro("udp_port", [](const Self& self) { return fabric::port_of(self.bound()); })
        .def(
            "start",
            [](Self& self, const fabric::Wiring& wiring, const HostAndPort& child,
               const std::optional<HostAndPort>& group) {
                self.start(wiring, make_address(child), group ? make_address(*group) : fabric::Address{});
            },
            "wiring"_a, "child"_a, "group"_a = nb::none(),
            "Starts the network: `child` speaks for all workers, `group` is a multicast group for parameters.")
        .def(
            "allow_worker",
            [](Self& self, std::uint32_t rank, const nb::bytes& bytes) {
                const fabric::Token token = make_token(bytes);
                const nb::gil_scoped_release release;
                self.allow_worker(rank, token);
            },
            "rank"_a, "token"_a,
            "Lets one UdpWorker in, which brings this token of 32 bytes. Again for a rank: another takes its place.")
        .def(
            "begin",
            [](Self& self, std::uint32_t worker, const std::vector<Group>& groups, std::optional<double> max_norm,
               const std::optional<LossScale>& loss_scale) {
                const auto settings = make_groups(groups);
                const auto gradient = make_gradient_settings(max_norm, loss_scale);
                const nb::gil_scoped_release release;
                const auto begun = self.begin(worker, settings, gradient);
                return std::tuple(begun.epoch, begun.given_up, begun.ended);
            },
            "worker"_a, "groups"_a, "max_norm"_a = nb::none(), "loss_scale"_a = nb::none(),
            "Starts a worker's step; returns the arguments of the worker's begin_step, and the number of attempts "
            "before.")
        .def("commit", &Self::vote, "worker"_a, "roll_back"_a, "pushes"_a, nb::call_guard<nb::gil_scoped_release>(),
             "A worker's vote on its step.")
        .def(
            "wait_commit",
            [](Self& self, std::uint32_t worker, double at_most_seconds) {
                return make_ending(self.wait_for_end(worker, milliseconds("at_most_seconds", at_most_seconds)));
            },
            "worker"_a, "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(), "As TcpServer.wait_commit.")
        .def(
            "lose_worker", [](Self& self, std::uint32_t rank) { return self.lose_worker(rank); }, "rank"_a,
            nb::call_guard<nb::gil_scoped_release>(), "As TcpServer.lose_worker; packets under way are dropped.")
        .def("stats", &server_stats, "As TcpServer.stats, and `network`: packets, heartbeats and drops of UDP.");
}

std::unique_ptr<fabric::UdpWorker> make_worker(const std::vector<ServerLink>& servers, const Cuts& cuts,
                                               std::uint32_t rank, std::uint32_t workers,
                                               const std::vector<BlockSpec>& blocks, double reconnect_seconds,
                                               const std::vector<UdpPlace*>& places, const fabric::Timing& timing,
                                               const std::optional<TlsFiles>& tls, bool shared_window) {
    if (places.size() != servers.size()) throw Error(ErrorKind::invalid, "places: expected one for each server");
    const fabric::TcpWorkerSettings settings =
        make_tcp_worker_settings({servers, cuts, rank, workers, blocks, reconnect_seconds, timing, tls, shared_window});
    std::vector<fabric::UdpSocket> sockets;
    for (UdpPlace* place : places) {
        if (!place->socket) throw Error(ErrorKind::invalid, "this place's socket belongs to another worker already");
        sockets.push_back(std::move(*place->socket));
        place->socket.reset();
    }
    auto worker = std::make_unique<fabric::UdpWorker>(settings, std::move(sockets));
    wait_connected(worker->remote());
    return worker;
}

// The stats of one server's tree, as network_stats wants them.
struct WorkerTree {
    fabric::UdpWorker& worker;
    std::uint32_t server;
    [[nodiscard]] auto node_stats() { return worker.node_stats(server); }
    [[nodiscard]] auto socket_stats() { return worker.socket_stats(server); }
};

nb::dict worker_stats(fabric::UdpWorker& self) {
    nb::dict stats = link_stats_of(self.remote());
    nb::list networks;
    for (std::uint32_t server = 0; server < self.servers(); ++server) {
        WorkerTree tree{self, server};
        networks.append(network_stats(tree));
    }
    stats["networks"] = networks;
    return stats;
}

void bind_worker(nb::module_& module) {
    nb::class_<UdpPlace>(module, "UdpPlace", "A bound UDP socket for a UdpWorker; address numeric, port 0: any.")
        .def(nb::new_([](const std::string& address, std::uint16_t port) {
                 fabric::UdpSocket socket(fabric::parse_address(address, port));
                 const std::uint16_t bound = fabric::port_of(socket.bound());
                 return std::make_unique<UdpPlace>(UdpPlace{std::move(socket), bound});
             }),
             "address"_a, "port"_a)
        .def_ro("port", &UdpPlace::port);
    using Self = fabric::UdpWorker;
    nb::class_<Self>(module, "UdpWorker", "A worker whose steps travel over UDP, and everything else over TCP.")
        .def(nb::new_(&make_worker), "servers"_a, "cuts"_a, "rank"_a, "workers"_a, "blocks"_a, "reconnect_seconds"_a,
             "places"_a, "timing"_a, "tls"_a = nb::none(), "shared_window"_a = false,
             "As TcpWorker; takes the sockets of the places, one for each server.")
        .def(
            "start",
            [](Self& self, std::uint32_t server, const fabric::Wiring& wiring, const HostAndPort& parent,
               std::uint16_t child, const std::optional<HostAndPort>& group) {
                self.start(server, wiring, make_address(parent), child,
                           group ? make_address(*group) : fabric::Address{});
            },
            "server"_a, "wiring"_a, "parent"_a, "child"_a, "group"_a = nb::none())
        .def("begin_step", &Self::begin_step, "server"_a, "epoch"_a, "given_up"_a,
             "Takes the answer of UdpServer.begin; until end_step, pulls and pushes are those of all workers.")
        .def("end_step", &Self::end_step)
        .def("endpoint", [](Self& self) { return self.remote().endpoint(); })
        .def(
            "fail",
            [](Self& self, const std::string& class_name, const std::string& message) {
                self.remote().fail(Error(kind_of(class_name), message));
            },
            "class_name"_a, "message"_a)
        .def("stats", &worker_stats)
        .def("close", [](Self& self) { self.remote().close(); }, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_udp_training(nb::module_& module) {
    bind_server(module);
    bind_worker(module);
}

}  // namespace luwu::bindings
