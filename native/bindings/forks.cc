// Keeps files and connections that Python opens from forked children.
#include "store/forks.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "fabric/core/address.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

void bind_forks(nb::module_& module) {
    module.def("keep_from_children", &store::keep_from_children, "descriptor"_a,
               "Forked children get /dev/null in the place of this descriptor of a socket or a file.");
    module.def(
        "keep_connections_from_children",
        [](const std::string& host, std::uint16_t port) {
            const fabric::Address address = fabric::parse_address(host, port);
            store::keep_connections_from_children(reinterpret_cast<const sockaddr&>(address.value));
        },
        "host"_a, "port"_a, "The same for every connection to this numeric address.");
    module.def(
        "keep_forever", [](nb::object object) { object.release(); }, "object"_a,
        "Never destroys an object, such as one whose threads a forked child does not have.");
}

}  // namespace luwu::bindings
