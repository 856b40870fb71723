#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/network_parts.h"
#include "bindings/server_parts.h"
#include "bindings/without_gil.h"
#include "standby/receiver.h"
#include "standby/sender.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

std::shared_ptr<standby::Sender> make_sender(const fabric::Timing& timing, const std::optional<TlsFiles>& tls,
                                             bool required, double answer_seconds, double patience_seconds) {
    return std::make_shared<standby::Sender>(
        standby::SenderSettings{.timing = timing,
                                .answer = milliseconds("answer_seconds", answer_seconds),
                                .tls = make_tls(tls),
                                .required = required,
                                .patience = milliseconds("patience_seconds", patience_seconds)});
}

nb::dict view_of(const standby::Sender& sender) {
    const standby::SenderView view = sender.view();
    nb::dict result;
    result["connected"] = view.connected;
    result["required"] = view.required;
    result["asks_to_require"] = view.asks_to_require;
    result["waits_seconds"] = view.waits ? nb::cast(seconds(view.waits_for)) : nb::none();
    result["step"] = view.step;
    result["bytes_sent"] = view.bytes_sent;
    result["bytes_copied"] = view.bytes_copied;
    result["lost_because"] = view.lost_because;
    return result;
}

nb::dict view_of(const standby::Receiver& receiver) {
    const standby::ReceiverView view = receiver.view();
    nb::dict result;
    result["connected"] = view.connected;
    result["alone_seconds"] = seconds(view.alone_for);
    result["in_sync"] = view.in_sync;
    result["to_note"] = view.to_note ? nb::cast(nb::make_tuple(*view.to_note, view.word)) : nb::none();
    result["has_values"] = view.has_values;
    result["step"] = view.step;
    result["bytes_received"] = view.bytes_received;
    result["note"] = nb::bytes(view.note.data(), view.note.size());
    result["failure"] = view.failure;
    return result;
}

void bind_sender(nb::module_& module) {
    using Self = standby::Sender;
    nb::class_<Self>(module, "StandbySender",
                     "A server's way to its standby, a second store that has each commit before it counts.")
        .def(
            nb::new_(&make_sender), "timing"_a, "tls"_a, "required"_a, "answer_seconds"_a, "patience_seconds"_a,
            "required: a standby was in sync when the server ended, so no commit counts without one. patience_seconds: "
            "the longest time that a commit waits for a standby that is away.")
        .def(
            "connect",
            [](Self& self, const std::string& address, std::uint16_t port, const nb::bytes& bytes) {
                const fabric::Token token = make_token(bytes);
                const nb::gil_scoped_release release;
                self.connect({address, port, token});
            },
            "address"_a, "port"_a, "token"_a,
            "Raises StepOrderError where a standby is connected, ServerError where it is not reached.")
        .def(
            "set_note",
            [](Self& self, const nb::bytes& bytes) {
                const auto* begin = reinterpret_cast<const std::byte*>(bytes.c_str());
                self.set_note({begin, begin + bytes.size()});
            },
            "note"_a, "Bytes that travel with each commit from now on.")
        .def("require", &Self::require,
             "The owner has noted that no commit counts without the standby. False: it is not asked for any more.")
        .def("release", &Self::release, "anyway"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Gives the standby up, so that commits count without it. True: it knows; False: it was not reached, and "
             "nothing is changed, unless anyway.")
        .def("close", &Self::close, nb::call_guard<nb::gil_scoped_release>(),
             "Ends all waits, from now on, and the connection to the standby.")
        .def("replace", &Self::replace, "why"_a, "The standby has taken over: every commit fails with this message.")
        .def(
            "view", [](const Self& self) { return view_of(self); },
            "connected, required, asks_to_require (require() is to be called), waits_seconds (a commit has waited that "
            "long; None: none does), step (the last that the standby has), bytes_sent, bytes_copied, lost_because.");
}

std::unique_ptr<WithoutGil<standby::Receiver>> make_receiver(
    const std::vector<std::string>& folders, const std::string& uuid, bool create, const std::vector<BlockSpec>& blocks,
    std::uint64_t chunk_elements, const std::string& optimizer, const std::string& address, std::uint16_t port,
    const fabric::Timing& timing, const std::optional<TlsFiles>& tls, bool in_sync) {
    standby::ReceiverSettings settings{.folders = folders,
                                       .uuid = make_uuid(uuid),
                                       .mode = create ? store::OpenMode::create : store::OpenMode::open,
                                       .shape = make_shape(blocks, chunk_elements, optimizer),
                                       .address = address,
                                       .port = port,
                                       .timing = timing,
                                       .tls = make_tls(tls),
                                       .in_sync = in_sync};
    const nb::gil_scoped_release release;
    return std::make_unique<WithoutGil<standby::Receiver>>(std::move(settings));
}

void bind_receiver(nb::module_& module) {
    using Self = WithoutGil<standby::Receiver>;
    nb::class_<Self>(module, "StandbyReceiver", "A store that gets each commit of another machine's server.")
        .def(nb::new_(&make_receiver), "folders"_a, "uuid"_a, "create"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a,
             "address"_a, "port"_a, "timing"_a, "tls"_a, "in_sync"_a,
             "Port 0: the kernel chooses. in_sync: the server counted on this store when it ended.")
        .def_prop_ro("port", &Self::port)
        .def_prop_ro("findings", &Self::findings,
                     "Damage to the store's commit records that was found and mended when it was opened, in words.")
        .def(
            "expect", [](Self& self, const nb::bytes& bytes) { self.expect(make_token(bytes)); }, "token"_a,
            "The 32 bytes that the server brings.")
        .def("note", &Self::note, "in_sync"_a, "word"_a,
             "The owner has noted whether the server counts on this store, and what word of the server that answers.")
        .def(
            "view", [](const Self& self) { return view_of(self); },
            "connected, alone_seconds (since the server was heard), in_sync, to_note (note() is to be called with "
            "these two; "
            "None: nothing is), has_values, step, bytes_received, note (of the last commit), failure.");
}

}  // namespace

void bind_standby(nb::module_& module) {
    bind_sender(module);
    bind_receiver(module);
}

}  // namespace luwu::bindings
