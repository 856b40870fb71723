#include "bindings/udp.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <future>
#include <memory>

#include "bindings/bindings.h"
#include "fabric/udp/udp_aggregator.h"
#include "fabric/udp/udp_port.h"
#include "switch/privileges.h"
#include "switch/udp_switch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

constexpr std::chrono::milliseconds kSignalCheck{100};  // how soon Ctrl-C is seen while a call waits

luwu_form parse_form(const std::string& name) {
    if (name == "int16") return LUWU_INT16;
    if (name == "int32") return LUWU_INT32;
    if (name == "float32") return LUWU_FLOAT32;
    throw Error(ErrorKind::invalid, "the form of gradients is '" + name + "'; expected int16, int32 or float32");
}

fabric::Time nanoseconds(double seconds) { return static_cast<fabric::Time>(seconds * 1e9); }

fabric::NetworkTiming make_timing(double heartbeat, double idle_heartbeat, double resend, double longest_resend,
                                  double queueing) {
    return {nanoseconds(heartbeat), nanoseconds(idle_heartbeat), nanoseconds(resend), nanoseconds(longest_resend),
            nanoseconds(queueing)};
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

fabric::Address group_of(const std::optional<HostAndPort>& group) {
    return group ? make_address(*group) : fabric::Address{};
}

std::uint32_t payload_limit(const std::string& from, const HostAndPort& to) {
    const fabric::UdpSocket socket(fabric::parse_address(from, 0), {.receive_buffers = 1});
    const std::uint32_t longest = socket.payload_limit(make_address(to));
    const std::uint32_t room = longest - std::min<std::uint32_t>(longest, sizeof(fabric::Head));
    return std::min<std::uint32_t>(room / LUWU_PAYLOAD_STEP * LUWU_PAYLOAD_STEP, LUWU_MOST_PAYLOAD);
}

void bind_wiring(nb::module_& module) {
    nb::class_<fabric::NetworkTiming>(module, "NetworkTiming", "Intervals of the network protocol, in seconds.")
        .def(nb::new_(&make_timing), "heartbeat_seconds"_a, "idle_heartbeat_seconds"_a, "resend_seconds"_a,
             "longest_resend_seconds"_a, "queueing_seconds"_a);
    nb::class_<fabric::Wiring>(module, "Wiring",
                               "What all participants of a job agree on. `windows`: packets under way at most, of "
                               "parameters, requests, exponents and gradients. `incarnation`: of this participant, "
                               "which grows each time it is told its place.")
        .def(nb::new_(&make_wiring), "job"_a, "key"_a, "epoch"_a, "workers"_a, "payload_bytes"_a, "form"_a, "windows"_a,
             "timing"_a, "incarnation"_a = 0)
        .def(
            "with_blocks",
            [](fabric::Wiring wiring, const std::vector<std::uint64_t>& elements) {
                for (const std::uint64_t count : elements) wiring.blocks.push_back({count, true});
                return wiring;
            },
            "elements"_a, "A copy for trainable fp32 blocks of these sizes, without a store.");
    module.def("udp_payload_limit", &payload_limit, "from_host"_a, "to"_a,
               "The longest payload of a packet to this (host, port), from an address of this host, in bytes.");
}

// What the kernel does for a switch; empty for one that is all in this process.
nb::dict xdp_stats(const switching::UdpSwitch& self) {
    constexpr std::array<const char*, LUWU_XDP_COUNTS> kNames{"packets_in", "packets_out", "sums_sent",
                                                              "sums_sent_again", "duplicates"};
    nb::dict stats;
    const auto status = self.xdp();
    if (!status) return stats;
    for (std::size_t what = 0; what < kNames.size(); ++what) stats[kNames[what]] = status->counts[what];
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
             "What the kernel does: counts, `ports` (the mode of each), `why_not` (why nothing for the present job).")
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
        .def("failure",
             [](Self& self) -> std::optional<std::string> {
                 const auto failure = self.failure();
                 return failure ? std::optional<std::string>(fabric::error_of(failure).what()) : std::nullopt;
             })
        .def("stats", &network_stats<Self>);
}

void bind_aggregator(nb::module_& module) {
    using Self = fabric::UdpAggregator;
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
               bool echo) { self.start(wiring, make_address(child), group_of(group), echo); },
            "wiring"_a, "child"_a, "group"_a = nb::none(), "echo"_a = true,
            "With `echo` a pull waits for the next push and brings its mean; without, both stand alone.")
        .def("stats", &network_stats<Self>);
}

// A UdpPort for callers that wait: each pull and push gives a ticket.
class WaitingPort {
  public:
    explicit WaitingPort(const fabric::Address& bound)
        : port_(fabric::UdpSocket(bound), {[](const Error&) {}, [](auto&&) {}}) {}
    fabric::UdpPort& port() { return port_; }

    std::size_t pull(std::uint32_t block, std::span<std::byte> into) {
        return ticket([&](fabric::UdpPort::Done done) { port_.pull({block, into, std::move(done)}); });
    }
    std::size_t push(std::uint32_t block, std::span<const std::byte> gradient) {
        auto exponents = fabric::exponents_of(gradient.data(), kernels::Dtype::float32, gradient.size() / 4);
        return ticket([&](fabric::UdpPort::Done done) {
            port_.push(block, gradient.data(), std::move(exponents), std::move(done));
        });
    }
    [[nodiscard]] bool wait(std::size_t ticket, std::chrono::milliseconds at_most) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, at_most, [&] { return done_.at(ticket); });
    }

  private:
    template <class Start>
    std::size_t ticket(const Start& start) {
        std::size_t number = 0;
        {
            const std::lock_guard lock(mutex_);
            number = done_.size();
            done_.push_back(false);
        }
        port_.call([&] {
            start([this, number](bool) {
                {
                    const std::lock_guard lock(mutex_);
                    done_[number] = true;
                }
                changed_.notify_all();
            });
        });
        return number;
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> done_;
    fabric::UdpPort port_;
};

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
    nb::class_<WaitingPort>(module, "UdpPort",
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
                self.port().start(wiring, make_address(parent), child, group_of(group));
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

void bind_udp(nb::module_& module) {
    bind_wiring(module);
    bind_switch(module);
    bind_aggregator(module);
    bind_port(module);
}

}  // namespace luwu::bindings
