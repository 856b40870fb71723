// What the bindings of the network's transports have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/server_parts.h"
#include "fabric/remote_worker.h"
#include "fabric/tcp_server.h"

namespace luwu::bindings {

using TlsFiles = std::tuple<std::string, std::string, std::string>;  // certificate, key, authority

[[nodiscard]] std::chrono::milliseconds milliseconds(const char* name, double seconds);
[[nodiscard]] fabric::Token make_token(const nanobind::bytes& bytes);
[[nodiscard]] std::optional<fabric::TlsSettings> make_tls(const std::optional<TlsFiles>& files,
                                                          const std::string& server_name);
[[nodiscard]] fabric::RemoteConfig make_remote_config(fabric::LinkSettings link, const std::vector<BlockSpec>& blocks,
                                                      const std::string& parameter_dtype, double reconnect_seconds);
void wait_connected(fabric::RemoteWorker& worker);  // with the interpreter's lock held; Ctrl-C is seen
[[nodiscard]] nanobind::dict link_stats_of(const fabric::RemoteWorker& worker);
[[nodiscard]] nanobind::dict tcp_stats_of(const fabric::TcpServer& server);

// What every server of a network can be asked, given how to reach its ParameterServer.
template <class Self, class Core>
void bind_core(nanobind::class_<Self>& type, Core core) {
    namespace nb = nanobind;
    using namespace nb::literals;
    type.def_prop_ro("initialised", [core](const Self& self) { return core(self).initialised(); })
        .def(
            "set_segments",
            [core](Self& self, std::uint32_t block, const Segments& segments) {
                set_segments(core(self), block, segments);
            },
            "block"_a, "segments"_a, "Parameter groups of a block: (end element, group) in ascending order.")
        .def(
            "worker_lost",
            [core](Self& self, const std::string& message) { core(self).fail(Error(ErrorKind::worker_lost, message)); },
            "message"_a, "Fails the run: every worker's wait raises WorkerLostError with this message.")
        .def("failure", [core](const Self& self) { return failure_of(core(self)); });
}

}  // namespace luwu::bindings
