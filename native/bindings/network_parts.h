// Common parts of the bindings of the network's transports.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/server_parts.h"
#include "bindings/traces.h"
#include "fabric/tcp/tcp_server.h"
#include "fabric/tcp/tcp_worker.h"

namespace luwu::bindings {

using TlsFiles = std::tuple<std::string, std::string, std::string>;  // certificate, key, authority

[[nodiscard]] fabric::Token make_token(const nanobind::bytes& bytes);
[[nodiscard]] std::optional<fabric::TlsSettings> make_tls(const std::optional<TlsFiles>& files);
// A server of a job, as a worker reaches it.
struct ServerLink {
    std::string address;
    std::uint16_t port;
    std::uint64_t job;
    fabric::Token token;
    bool initialised;
};
using Cuts = std::vector<std::vector<fabric::Placement::Cut>>;  // of each block
// The parts that TcpWorker and UdpWorker are made of.
struct WorkerParts {
    std::vector<ServerLink> servers;
    Cuts cuts;
    std::uint32_t rank;
    std::uint32_t workers;
    std::vector<BlockSpec> blocks;
    double reconnect_seconds;
    fabric::Timing timing;
    std::optional<TlsFiles> tls;
    bool shared_window;
};
[[nodiscard]] fabric::TcpWorkerSettings make_tcp_worker_settings(const WorkerParts& parts);
void wait_connected(fabric::TcpWorker& worker);  // with the interpreter's lock held; Ctrl-C is seen
[[nodiscard]] nanobind::dict link_stats_of(const fabric::TcpWorker& worker);
[[nodiscard]] nanobind::dict tcp_stats_of(const fabric::TcpServer& server);

// Functions of one server of several: a worker's last word on an attempt, `pipeline::LastWord`.
template <class Self, class Core>
void bind_last_word(nanobind::class_<Self>& type, Core core) {
    namespace nb = nanobind;
    using namespace nb::literals;
    type.def(
            "decide",
            [core](Self& self, std::uint32_t worker, std::uint64_t ended, bool commits, std::optional<double> squares) {
                core(self).last_word(worker).decide(ended, commits, squares.value_or(pipeline::kNoSquares));
            },
            "worker"_a, "ended"_a, "commits"_a, "squares"_a = nb::none(), nb::call_guard<nb::gil_scoped_release>(),
            "Commits or rolls back the attempt that follows `ended` others, if it waits for that; with clipping, "
            "squares "
            "is the sum over all servers. The first call counts.")
        .def(
            "annul",
            [core](Self& self, std::uint32_t worker, std::uint64_t ended) {
                core(self).last_word(worker).annul(ended);
            },
            "worker"_a, "ended"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Makes the attempt that follows `ended` others void, because that of another server is.")
        .def(
            "wait_ended",
            [core](Self& self, std::uint32_t worker, double at_most_seconds) {
                const auto at_most = milliseconds("at_most_seconds", at_most_seconds);
                return make_ending(core(self).last_word(worker).wait(at_most));
            },
            "worker"_a, "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
            "The end of the worker's attempt, as wait_commit has it; None when that takes longer.");
}

// Functions of every network server, given how to reach its ParameterServer.
template <class Self, class Core>
void bind_core(nanobind::class_<Self>& type, Core core) {
    namespace nb = nanobind;
    using namespace nb::literals;
    bind_traces(type, core);
    bind_last_word(type, core);
    type.def_prop_ro("initialised", [core](const Self& self) { return core(self).initialised(); })
        .def_prop_ro(
            "findings", [core](const Self& self) { return core(self).findings(); },
            "Damage to the store's commit records that was met when it was opened, and mended, in words.")
        .def(
            "set_segments",
            [core](Self& self, std::uint32_t block, const Segments& segments) {
                set_segments(core(self), block, segments);
            },
            "block"_a, "segments"_a, "Parameter groups of a block: (end element, group) in ascending order.")
        .def(
            "wait_for_place",
            [core](Self& self, std::uint32_t rank, double at_most_seconds) {
                return core(self).wait_for_place(rank, milliseconds("at_most_seconds", at_most_seconds));
            },
            "rank"_a, "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
            "True once allow_worker may let another worker in at the place of a lost one, or the run has failed; "
            "False: not in time.")
        .def(
            "worker_left", [core](Self& self, std::uint32_t rank) { core(self).leave(rank); }, "rank"_a,
            "The worker makes no more steps. Fails the run when others are in one, or begin one later.")
        .def(
            "fail_run",
            [core](Self& self, const std::string& message) { core(self).fail(Error(ErrorKind::worker_lost, message)); },
            "message"_a, "Fails the run: every worker's wait raises WorkerLostError with this message.")
        .def(
            "take_snapshot", [core](Self& self) { return core(self).take_snapshot(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "Takes a snapshot of the last step that was answered, and returns its number.")
        .def(
            "make_durable", [core](Self& self, double seconds) { return make_durable(core(self), seconds); },
            "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(), kMakeDurable)
        .def(
            "finish", [core](Self& self, double seconds) { return finish(core(self), seconds); }, "at_most_seconds"_a,
            nb::call_guard<nb::gil_scoped_release>(), kFinish)
        .def(
            "close", [core](Self& self) { core(self).close(); }, nb::call_guard<nb::gil_scoped_release>(), kClose)
        .def(
            "failure", [core](const Self& self) { return failure_of(core(self)); }, nb::sig(kFailure))
        .def("look", [core](const Self& self) { return look_at_blocks(core(self)); }, kLook);
}

}  // namespace luwu::bindings
