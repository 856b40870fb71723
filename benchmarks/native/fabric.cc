#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "aggregator.h"
#include "bindings/udp.h"
#include "module.h"
#include "udp_aggregator.h"
#include "waiting_port.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bench {

namespace {

using bindings::HostAndPort;
using bindings::make_address;
using bindings::network_stats;

constexpr std::chrono::milliseconds kSignalCheck{100};  // how soon Ctrl-C is seen while a call waits

fabric::Wiring with_blocks(fabric::Wiring wiring, const std::vector<std::uint64_t>& elements) {
    for (const std::uint64_t count : elements) wiring.blocks.push_back({count, true});
    return wiring;
}

void bind_shm_aggregator(nb::module_& module) {
    nb::class_<Aggregator>(module, "Aggregator",
                           "The fabric alone: every worker pushes one fp32 block and pulls the mean of all.")
        .def(nb::init<std::uint64_t, std::uint32_t, std::uint32_t>(), "elements"_a, "workers"_a, "threads"_a)
        .def("files_of", &Aggregator::files_of, "rank"_a,
             "Descriptors of control, window and arena memory for one worker; they stay the aggregator's.");
}

void bind_udp_aggregator(nb::module_& module) {
    using Self = UdpAggregator;
    nb::class_<Self>(module, "UdpAggregator",
                     "The network fabric alone: every worker pushes fp32 blocks and pulls the means of all.")
        .def(
            "__init__",
            [](Self* self, const std::string& address, std::uint16_t port) {
                new (self) Self(fabric::parse_address(address, port), {});
            },
            "address"_a, "port"_a)
        .def_prop_ro("port", [](const Self& self) { return fabric::port_of(self.bound()); })
        .def(
            "start",
            [](Self& self, const fabric::Wiring& wiring, const HostAndPort& child,
               const std::optional<HostAndPort>& group,
               bool echo) { self.start(wiring, make_address(child), make_address(group), echo); },
            "wiring"_a, "child"_a, "group"_a = nb::none(), "echo"_a = true,
            "With `echo` a pull waits for the next push and brings its mean; without, both stand alone.")
        .def("stats", &network_stats<Self>);
}

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void wait_for(WaitingPort& port, std::size_t ticket) {
    while (true) {
        {
            const nb::gil_scoped_release release;
            if (port.wait(ticket, kSignalCheck)) return;
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

void bind_port(nb::module_& module) {
    nb::class_<WaitingPort>(module, "WaitingPort",
                            "A worker's end of the network fabric without a store. Memory given to pull and push must "
                            "stay until the ticket was waited for.")
        .def(
            "__init__",
            [](WaitingPort* self, const std::string& address, std::uint16_t port) {
                new (self) WaitingPort(fabric::parse_address(address, port));
            },
            "address"_a, "port"_a)
        .def_prop_ro("port", [](WaitingPort& self) { return fabric::port_of(self.port().bound()); })
        .def(
            "start",
            [](WaitingPort& self, const fabric::Wiring& wiring, const HostAndPort& parent, std::uint16_t child,
               const std::optional<HostAndPort>& group) {
                self.port().start(wiring, make_address(parent), child, make_address(group));
            },
            "wiring"_a, "parent"_a, "child"_a, "group"_a = nb::none())
        .def(
            "pull",
            [](WaitingPort& self, std::uint32_t block, const Floats& into) {
                const auto bytes = std::as_writable_bytes(std::span(into.data(), into.size()));
                const nb::gil_scoped_release release;
                return self.pull(block, bytes);
            },
            "block"_a, "into"_a)
        .def(
            "push",
            [](WaitingPort& self, std::uint32_t block, const Floats& gradient) {
                const auto bytes = std::as_bytes(std::span(gradient.data(), gradient.size()));
                const nb::gil_scoped_release release;
                return self.push(block, bytes);
            },
            "block"_a, "gradient"_a)
        .def("wait", &wait_for, "ticket"_a)
        .def("stats", [](WaitingPort& self) { return network_stats(self.port()); });
}

}  // namespace

void bind_fabric(nb::module_& module) {
    module.def("with_blocks", &with_blocks, "wiring"_a, "elements"_a,
               "A copy of a Wiring for trainable fp32 blocks of these sizes, without a store.");
    bind_shm_aggregator(module);
    bind_udp_aggregator(module);
    bind_port(module);
}

}  // namespace luwu::bench
