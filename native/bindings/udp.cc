#include "bindings/udp.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/traces.h"
#include "fabric/udp/udp_port.h"
#include "switch/privileges.h"
#include "switch/udp_switch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

luwu_form parse_form(const std::string& name) {
    if (name == "int16") return LUWU_INT16;
    if (name == "int32") return LUWU_INT32;
    if (name == "float32") return LUWU_FLOAT32;
    throw Error(ErrorKind::invalid, "the form of gradients is '" + name + "'; expected int16, int32 or float32");
}

fabric::Time nanoseconds(double seconds) { return static_cast<fabric::Time>(seconds * 1e9); }

fabric::NetworkTiming make_timing(const std::map<std::string, double>& seconds) {
    fabric::NetworkTiming timing;
    for (const auto& [name, value] : fabric::kTimings) {
        const auto found = seconds.find(name);
        if (found == seconds.end()) throw nb::type_error((std::string("expected ") + name + ", found none").c_str());
        timing.*value = nanoseconds(found->second);
    }
    if (seconds.size() != fabric::kTimings.size()) throw nb::type_error("expected other names of timings");
    return timing;
}

fabric::Wiring make_wiring(std::uint64_t job, std::uint64_t key, std::uint32_t epoch, std::uint32_t workers,
                           std::uint32_t payload_bytes, const std::string& form,
                           const std::array<std::uint32_t, LUWU_STREAMS>& windows, const fabric::NetworkTiming& timing,
                           std::uint32_t incarnation) {
    fabric::Wiring wiring;
    wiring.job = job;
    wiring.key = key;
    wiring.epoch = epoch;
    wiring.workers = workers;
    wiring.payload_bytes = payload_bytes;
    wiring.form = parse_form(form);
    wiring.window = windows;
    wiring.timing = timing;
    wiring.incarnation = incarnation;
    fabric::check(wiring);
    return wiring;
}

std::uint32_t payload_limit(const std::string& from, const HostAndPort& to) {
    const fabric::UdpSocket socket(fabric::parse_address(from, 0), {.receive_buffers = 1});
    const std::uint32_t longest = socket.payload_limit(make_address(to));
    const std::uint32_t room = longest - std::min<std::uint32_t>(longest, sizeof(fabric::Head));
    return std::min<std::uint32_t>(room / LUWU_PAYLOAD_STEP * LUWU_PAYLOAD_STEP, LUWU_MOST_PAYLOAD);
}

void bind_wiring(nb::module_& module) {
    nb::class_<fabric::NetworkTiming>(module, "NetworkTiming",
                                      "Intervals of the network protocol in seconds, by the names of their settings.")
        .def(nb::new_(&make_timing), "seconds"_a);
    nb::class_<fabric::Wiring>(module, "Wiring",
                               "The agreement of all participants of a job. `windows`: packets under way at most, of "
                               "parameters, requests, exponents and gradients. `incarnation`: of this participant, "
                               "which grows each time it is told its place.")
        .def(nb::new_(&make_wiring), "job"_a, "key"_a, "epoch"_a, "workers"_a, "payload_bytes"_a, "form"_a, "windows"_a,
             "timing"_a, "incarnation"_a = 0);
    module.def("udp_payload_limit", &payload_limit, "from_host"_a, "to"_a,
               "The longest payload of a packet to this (host, port), from an address of this host, in bytes.");
}

// Statistics of the kernel's part of a switch; empty for a switch that is all in this process.
nb::dict xdp_stats(const switching::UdpSwitch& self) {
    constexpr std::array<const char*, LUWU_XDP_COUNTS> kNames{"packets_in", "packets_out", "sums_sent",
                                                              "sums_sent_again", "duplicates"};
    nb::dict stats;
    const auto status = self.xdp();
    if (!status) return stats;
    for (std::size_t what = 0; what < kNames.size(); ++what) stats[kNames[what]] = status->stats[what];
    nb::dict ports;
    for (const auto& [name, mode] : status->modes) ports[name.c_str()] = mode;
    stats["ports"] = ports;
    stats["why_not"] = status->why_not;
    return stats;
}

void bind_switch(nb::module_& module) {
    using Self = switching::UdpSwitch;
    module.def("xdp_missing", &switching::xdp_missing, "Why this build has no switch inside the kernel; else empty.");
    module.def(
        "keep_xdp_capabilities_alone",
        [](const std::optional<std::pair<std::uint32_t, std::uint32_t>>& user) {
            std::optional<switching::UserAndGroup> wanted;
            if (user) wanted = {user->first, user->second};
            switching::keep_xdp_capabilities_alone(wanted);
        },
        "user_and_group"_a,
        "Gives up all of root's rights but what XDP needs, and becomes this user; before this process has threads.");
    nb::class_<Self>(module, "UdpSwitch",
                     "A switch of the aggregation tree on this host. `interfaces`: whose packets are added up and "
                     "copied inside the kernel.")
        .def(
            "__init__",
            [](Self* self, const std::string& address, std::uint16_t port, const std::vector<std::string>& interfaces) {
                new (self) Self(fabric::parse_address(address, port), {}, interfaces);
            },
            "address"_a, "port"_a, "interfaces"_a = std::vector<std::string>())
        .def("xdp", &xdp_stats,
             "The work of the kernel: counts, `ports` (the mode of each), `why_not` (why nothing for the present job).")
        .def_prop_ro("port", [](const Self& self) { return fabric::port_of(self.bound()); })
        .def(
            "start",
            [](Self& self, const fabric::Wiring& wiring, const HostAndPort& parent, std::uint16_t child,
               const std::vector<HostAndPort>& children) {
                std::vector<fabric::Address> addresses;
                for (const HostAndPort& place : children) addresses.push_back(make_address(place));
                self.start(wiring, make_address(parent), child, addresses);
            },
            "wiring"_a, "parent"_a, "child"_a, "children"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Works for a job: parent and children as (host, port), `child` is its number among the parent's children.")
        .def("stop", &Self::stop, nb::call_guard<nb::gil_scoped_release>())
        .def("start_trace", &Self::start_trace, "most_records"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Records the sums of blocks of the present job, at most so many.")
        .def(
            "stop_trace", [](Self& self) { return records_of(self.stop_trace()); },
            "Records no more, and returns what was recorded, and the number of sums that found no room. Records are as "
            "luwu.core.trace reads them.")
        .def("failure",
             [](Self& self) -> std::optional<std::string> {
                 const auto failure = self.failure();
                 return failure ? std::optional<std::string>(fabric::error_of(failure).what()) : std::nullopt;
             })
        .def("stats", &network_stats<Self>);
}

}  // namespace

void bind_udp(nb::module_& module) {
    bind_wiring(module);
    bind_switch(module);
}

}  // namespace luwu::bindings
