#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/network_parts.h"
#include "bindings/server_parts.h"
#include "bindings/without_gil.h"
#include "fabric/tcp/tcp_server.h"
#include "fabric/tcp/tcp_worker.h"
#include "standby/sender.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

std::unique_ptr<WithoutGil<fabric::TcpServer>> make_server(
    const std::vector<std::string>& folders, const std::string& uuid, bool create, const std::vector<BlockSpec>& blocks,
    std::uint64_t chunk_elements, const std::string& optimizer, std::uint64_t memory_bytes, std::uint32_t workers,
    std::uint32_t optimizer_threads, const std::string& address, std::uint16_t port, std::uint64_t job,
    const fabric::Timing& timing, const std::optional<TlsFiles>& tls, bool one_of_several,
    std::optional<std::uint64_t> at_step, const Snapshots& snapshots, double disk_full_wait_seconds,
    const Durable& durable, std::uint32_t trims, std::shared_ptr<standby::Sender> standby) {
    fabric::ServerSettings settings =
        make_server_settings(folders, uuid, create, blocks, chunk_elements, optimizer, memory_bytes, workers,
                             optimizer_threads, snapshots, disk_full_wait_seconds, durable, trims);
    settings.one_of_several = one_of_several;
    settings.at_step = at_step;
    settings.replica = std::move(standby);
    const nb::gil_scoped_release release;
    return std::make_unique<WithoutGil<fabric::TcpServer>>(
        std::move(settings), fabric::TcpSettings{address, port, job, make_tls(tls), timing});
}

std::unique_ptr<fabric::TcpWorker> make_worker(const std::vector<ServerLink>& servers, const Cuts& cuts,
                                               std::uint32_t rank, std::uint32_t workers,
                                               const std::vector<BlockSpec>& blocks, double reconnect_seconds,
                                               const fabric::Timing& timing, const std::optional<TlsFiles>& tls,
                                               bool shared_window) {
    auto worker = std::make_unique<fabric::TcpWorker>(make_tcp_worker_settings(
        {servers, cuts, rank, workers, blocks, reconnect_seconds, timing, tls, shared_window}));
    wait_connected(*worker);
    return worker;
}

fabric::Timing make_timing(double hello, double silence, double backoff, double longest_backoff, double farewell) {
    return {.hello = milliseconds("hello_seconds", hello),
            .silence = milliseconds("silence_seconds", silence),
            .reconnect = {},
            .backoff = milliseconds("backoff_seconds", backoff),
            .longest_backoff = milliseconds("longest_backoff_seconds", longest_backoff),
            .farewell = milliseconds("farewell_seconds", farewell)};
}

void bind_timing(nb::module_& module) {
    nb::class_<fabric::Timing>(
        module, "Timing",
        "Time limits of the network fabric: for a hello with TLS; until a host that acknowledges nothing counts as "
        "gone; between attempts to connect; and for telling the others why when one side closes.")
        .def(nb::new_(&make_timing), "hello_seconds"_a, "silence_seconds"_a, "backoff_seconds"_a,
             "longest_backoff_seconds"_a, "farewell_seconds"_a);
}

void bind_tcp_server(nb::module_& module) {
    using Self = WithoutGil<fabric::TcpServer>;
    nb::class_<Self> type(module, "TcpServer",
                          "The server of workers on other hosts: an open store behind TCP or TLS.");
    bind_core(type, [](auto& self) -> auto& { return self.core(); });
    type.def(nb::new_(&make_server), "folders"_a, "uuid"_a, "create"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a,
             "memory_bytes"_a, "workers"_a, "optimizer_threads"_a, "address"_a, "port"_a, "job"_a, "timing"_a,
             "tls"_a = nb::none(), "one_of_several"_a = false, "at_step"_a = nb::none(), "snapshots"_a = Snapshots{},
             "disk_full_wait_seconds"_a = 0.0, "durable"_a = kEachStep, "trims"_a = 0, "standby"_a = nb::none(),
             "Port 0: the kernel chooses. tls: paths of the PEM files (certificate, key, ca); both sides need one. "
             "one_of_several: a step that all voted for waits for decide(); at_step: the step that all servers have.")
        .def_prop_ro("port", &Self::port)
        .def(
            "allow_worker",
            [](Self& self, std::uint32_t rank, const nb::bytes& bytes) {
                const fabric::Token token = make_token(bytes);
                const nb::gil_scoped_release release;
                self.allow_worker(rank, token);
            },
            "rank"_a, "token"_a,
            "Lets one TcpWorker in, which brings this token of 32 bytes. Again for a rank: another takes its place.")
        .def(
            "begin",
            [](Self& self, std::uint32_t worker, const std::vector<Group>& groups, std::optional<double> max_norm,
               const std::optional<LossScale>& loss_scale) {
                const auto settings = make_groups(groups);
                const auto gradient = make_gradient_settings(max_norm, loss_scale);
                const nb::gil_scoped_release release;
                return std::tuple(0U, false, self.core().begin(worker, settings, gradient).ended);
            },
            "worker"_a, "groups"_a, "max_norm"_a = nb::none(), "loss_scale"_a = nb::none(),
            "Starts a worker's step: the optimizer's hyper-parameters, in its own order, for each parameter group. The "
            "gradient is divided by loss_scale, (scale, good steps before at this scale), and its global norm is then "
            "clipped to max_norm, where there are such. Returns what UdpServer.begin does.")
        .def(
            "commit",
            [](Self& self, std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
                self.core().vote(worker, roll_back, pushes);
            },
            "worker"_a, "roll_back"_a, "pushes"_a, nb::call_guard<nb::gil_scoped_release>(),
            "A worker's vote on its step; counts when `pushes` pushes in all have come since allow_worker.")
        .def(
            "wait_commit",
            [](Self& self, std::uint32_t worker, double at_most_seconds) {
                return make_ending(self.core().wait_for_end(worker, milliseconds("at_most_seconds", at_most_seconds)));
            },
            "worker"_a, "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
            "1 when the step was committed, 0 when it was rolled back, 2 when it waits for decide(), 3 when a gradient "
            "was not finite, 4 when a lost worker made the attempt void; None when that takes longer.")
        .def(
            "stats", [](const Self& self) { return tcp_stats_of(self); },
            "As ShmServer.stats, and `drops`: connections that were dropped, by reason.")
        .def(
            "lose_worker", [](Self& self, std::uint32_t rank) { return self.lose_worker(rank); }, "rank"_a,
            nb::call_guard<nb::gil_scoped_release>(),
            "The worker is gone: its connections end, an attempt that it was in is void, and another worker may take "
            "its place.");
}

void bind_remote_worker(nb::module_& module) {
    using Self = fabric::TcpWorker;
    nb::class_<Self>(module, "TcpWorker",
                     "A worker's connections to the TcpServers of its job, with memory of its own.")
        .def(nb::new_(&make_worker), "servers"_a, "cuts"_a, "rank"_a, "workers"_a, "blocks"_a, "reconnect_seconds"_a,
             "timing"_a, "tls"_a = nb::none(), "shared_window"_a = false,
             "Returns when it is connected. cuts: (server, first element, elements) of each block, in order. tls: "
             "paths of the PEM files (certificate, key, ca). shared_window: a device copies parameters from it.")
        .def("endpoint", &Self::endpoint,
             "Pulls, pushes and first values; a step begins and ends through the control plane. One for each worker.")
        .def(
            "fail",
            [](Self& self, const std::string& class_name, const std::string& message) {
                self.fail(Error(kind_of(class_name), message));
            },
            "class_name"_a, "message"_a, "Everyone who waits raises this class of luwu.errors; the first call counts.")
        .def("stats", &link_stats_of,
             "Payload bytes that were answered, how often a connection was made again, and of each server the time "
             "since a connection to it broke, 0 where both are there.")
        .def("close", &Self::close, nb::call_guard<nb::gil_scoped_release>());
}

void bind_server_link(nb::module_& module) {
    nb::class_<ServerLink>(module, "ServerLink",
                           "A worker's way to one of its servers; initialised: it has first values already.")
        .def(
            "__init__",
            [](ServerLink* self, std::string address, std::uint16_t port, std::uint64_t job, const nb::bytes& token,
               bool initialised) {
                new (self) ServerLink{std::move(address), port, job, make_token(token), initialised};
            },
            "address"_a, "port"_a, "job"_a, "token"_a, "initialised"_a = false);
}

}  // namespace

void bind_network(nb::module_& module) {
    bind_timing(module);
    bind_server_link(module);
    bind_tcp_server(module);
    bind_remote_worker(module);
}

}  // namespace luwu::bindings
