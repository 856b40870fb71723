#include "fabric/tcp/door.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings/bindings.h"
#include "bindings/network_parts.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

std::unique_ptr<fabric::Door> make_door(const std::string& address, std::uint16_t port, const std::string& inside,
                                        std::size_t most_strangers, double burst, double patience,
                                        const fabric::Timing& timing) {
    fabric::DoorSettings settings;
    settings.address = address;
    settings.port = port;
    settings.inside = inside;
    settings.most_strangers = most_strangers;
    settings.burst = burst;
    settings.patience = milliseconds("patience_seconds", patience);
    settings.timing = timing;
    return std::make_unique<fabric::Door>(settings);
}

nb::dict stats(fabric::Door& self) {
    const fabric::Door::Stats stats = self.stats();
    nb::dict result;
    result["crowded"] = stats.lobby.crowded + stats.evicted;
    result["silent"] = stats.lobby.silent;
    result["closed"] = stats.lobby.closed;
    result["talkative"] = stats.talkative;
    result["late"] = stats.late;
    result["hasty"] = stats.hasty;
    result["strangers"] = stats.strangers;
    result["visitors"] = stats.visitors;
    return result;
}

}  // namespace

void bind_door(nb::module_& module) {
    using Self = fabric::Door;
    nb::class_<Self>(module, "Door",
                     "Passes connections on to a server on a Unix socket; strangers may send little, for a short time, "
                     "and be few.")
        .def(nb::new_(&make_door), "address"_a, "port"_a, "inside"_a, "most_strangers"_a, "burst"_a,
             "patience_seconds"_a, "timing"_a)
        .def_prop_ro("port", &Self::port)
        .def("admit", &Self::admit, "name"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Lifts the limits of the connection that has this end of the Unix socket; False: it has gone.")
        .def("peer", &Self::peer, "name"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Origin, HOST:PORT, of the connection that has this end of the Unix socket; None: it has gone.")
        .def("shut", &Self::shut, nb::call_guard<nb::gil_scoped_release>(), "Refuses new connections from now on.")
        .def("close", &Self::close, nb::call_guard<nb::gil_scoped_release>(),
             "Refuses new connections, and closes each of the others when its client has read all data.")
        .def("counts", &stats, "Number of connections that were closed, by reason, and number that there are.");
}

}  // namespace luwu::bindings
