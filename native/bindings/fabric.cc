#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/interrupts.h"
#include "bindings/server_parts.h"
#include "bindings/traces.h"
#include "fabric/shm/endpoint.h"
#include "fabric/shm/shm_server.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

// The endpoint's memory as an array of bytes that keeps the endpoint alive.
using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
Bytes as_bytes(const fabric::Endpoint& endpoint, std::byte* data, std::uint64_t bytes) {
    return Bytes(reinterpret_cast<std::uint8_t*>(data), {bytes}, nb::find(endpoint));
}

std::unique_ptr<fabric::ShmServer> make_server(const std::vector<std::string>& folders, const std::string& uuid,
                                               bool create, const std::vector<BlockSpec>& blocks,
                                               std::uint64_t chunk_elements, const std::string& optimizer,
                                               std::uint64_t memory_bytes, std::uint32_t workers,
                                               std::uint32_t optimizer_threads, const Snapshots& snapshots,
                                               bool read_only, double disk_full_wait_seconds, const Durable& durable,
                                               std::uint32_t trims) {
    fabric::ServerSettings settings =
        make_server_settings(folders, uuid, create, blocks, chunk_elements, optimizer, memory_bytes, workers,
                             optimizer_threads, snapshots, disk_full_wait_seconds, durable, trims);
    if (read_only) settings.mode = store::OpenMode::read_only;
    const nb::gil_scoped_release release;
    return std::make_unique<fabric::ShmServer>(std::move(settings));
}

bool begin(fabric::Endpoint& endpoint, const std::vector<Group>& groups, std::optional<double> max_norm,
           const std::optional<LossScale>& loss_scale) {
    const auto settings = make_groups(groups);
    const auto gradient = make_gradient_settings(max_norm, loss_scale);
    const nb::gil_scoped_release release;
    endpoint.begin(settings, gradient);
    return false;
}

std::optional<double> grad_norm(const fabric::Endpoint& endpoint) {
    const auto squares = known(endpoint.squares());
    return squares ? std::optional<double>(std::sqrt(*squares)) : std::nullopt;
}

std::int64_t wait(fabric::Endpoint& endpoint, fabric::Handle handle) {
    return *wait_for([&](auto at_most) { return endpoint.wait(handle, at_most); });
}

nb::dict endpoint_stats(fabric::Endpoint& endpoint) {
    const fabric::EndpointStats stats = endpoint.stats();
    nb::dict result;
    result["bytes_pulled"] = stats.bytes_pulled;
    result["bytes_pushed"] = stats.bytes_pushed;
    result["wait_seconds"] = static_cast<double>(stats.wait_nanoseconds) * 1e-9;
    result["busy_seconds"] = static_cast<double>(stats.busy_nanoseconds) * 1e-9;
    return result;
}

nb::object failure(const fabric::ShmServer& server) { return failure_of(server.core()); }

nb::class_<fabric::ShmServer> bind_server(nb::module_& module) {
    nb::class_<fabric::ShmServer> type(module, "ShmServer", "The server of one host, with its workers' shared memory.");
    return type
        .def(
            nb::new_(&make_server), "folders"_a, "uuid"_a, "create"_a, "blocks"_a, "chunk_elements"_a, "optimizer"_a,
            "memory_bytes"_a, "workers"_a, "optimizer_threads"_a, "snapshots"_a = Snapshots{}, "read_only"_a = false,
            "disk_full_wait_seconds"_a = 0.0, "durable"_a = kEachStep, "trims"_a = 0,
            "`snapshots`: steps between two (0: none), and the number to keep (0: all). A store that is only read, "
            "such as a snapshot, is not locked, and makes no steps. A step waits `disk_full_wait_seconds` for room on "
            "a disk before the run fails. `durable`: a commit point every so many steps, or seconds; (0, 0): only when "
            "the server closes.")
        .def_prop_ro("initialised", &fabric::ShmServer::initialised)
        .def_prop_ro(
            "findings", [](const fabric::ShmServer& self) { return self.findings(); },
            "Damage to the store's commit records that was met when it was opened, and mended, in words.")
        .def("files_of", &fabric::ShmServer::files_of, "rank"_a,
             "Descriptors of control, window and arena memory for one worker; they stay the server's.")
        .def(
            "set_segments",
            [](fabric::ShmServer& self, std::uint32_t block, const Segments& segments) {
                set_segments(self.core(), block, segments);
            },
            "block"_a, "segments"_a, "Parameter groups of a block: (end element, group) in ascending order.")
        .def("worker_left", &fabric::ShmServer::leave, "rank"_a,
             "The worker makes no more steps. Fails the run when others are in one, or begin one later.")
        .def(
            "lose_worker", &fabric::ShmServer::lose, "rank"_a, nb::call_guard<nb::gil_scoped_release>(),
            "The worker is gone: what it held is given back, an attempt that it was in is void, and another worker may "
            "take its place.")
        .def(
            "wait_for_place",
            [](fabric::ShmServer& self, std::uint32_t rank, double at_most_seconds) {
                return self.wait_for_place(rank, milliseconds("at_most_seconds", at_most_seconds));
            },
            "rank"_a, "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
            "True once nothing of the lost worker is left at its place, or the run has failed; False: not in time.")
        .def("take_place", &fabric::ShmServer::take_place, "rank"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Lets another worker in at the place of a lost one, after wait_for_place.")
        .def(
            "fail_run",
            [](fabric::ShmServer& self, const std::string& message) {
                self.fail(Error(ErrorKind::worker_lost, message));
            },
            "message"_a, "Fails the run: every worker's wait raises WorkerLostError with this message.")
        .def(
            "take_snapshot", [](fabric::ShmServer& self) { return self.core().take_snapshot(); },
            nb::call_guard<nb::gil_scoped_release>(),
            "Takes a snapshot of the last step that was answered, and returns its number.")
        .def(
            "make_durable", [](fabric::ShmServer& self, double seconds) { return make_durable(self.core(), seconds); },
            "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(), kMakeDurable)
        .def(
            "finish", [](fabric::ShmServer& self, double seconds) { return finish(self.core(), seconds); },
            "at_most_seconds"_a, nb::call_guard<nb::gil_scoped_release>(), kFinish)
        .def("close", &fabric::ShmServer::close, nb::call_guard<nb::gil_scoped_release>(), kClose)
        .def("failure", &failure, nb::sig(kFailure))
        .def(
            "look", [](const fabric::ShmServer& self) { return look_at_blocks(self.core()); }, kLook)
        .def("stats", [](const fabric::ShmServer& self) { return stats_of(self.core()); });
}

void bind_endpoint(nb::module_& module) {
    nb::class_<fabric::Endpoint>(module, "Endpoint", "A worker's end of the fabric, over any transport.")
        .def(
            "__init__",
            [](fabric::Endpoint* self, const std::array<int, 3>& files, std::uint32_t rank, int liveness,
               bool shared_window) {
                const auto mode = shared_window ? fabric::MapMode::shared : fabric::MapMode::private_copy;
                new (self) fabric::Endpoint({files[0], files[1], files[2], liveness}, rank, mode);
            },
            "files"_a, "rank"_a, "liveness"_a = -1, "shared_window"_a = false)
        .def_prop_ro(
            "window", [](const fabric::Endpoint& self) { return as_bytes(self, self.window(), self.window_bytes()); },
            "The parameters' memory, as bytes; wait(pull(block)) gives the block's offset in it.")
        .def_prop_ro("arena_bytes", &fabric::Endpoint::arena_bytes)
        .def_prop_ro(
            "data_plane", [](const nb::object& self) { return self; },
            nb::for_getter(nb::sig("def data_plane(self) -> Endpoint")), "Itself: the data plane and the rest are one.")
        .def(
            "note_push", [](const fabric::Endpoint&, std::uint32_t, fabric::Handle) {}, "block"_a, "handle"_a,
            "Does nothing: the server counts what comes before a commit.")
        .def_prop_ro("gradient_bytes", &fabric::Endpoint::gradient_bytes,
                     "Bytes at the arena's front that the server's budget counts, for gradients.")
        .def(
            "register",
            [](fabric::Endpoint& self, std::uint64_t bytes) {
                return as_bytes(self, self.arena() + self.register_buffer(bytes), bytes);
            },
            "nbytes"_a, "Takes the next bytes of the gradient arena, from its front, on a cache line.")
        .def(
            "begin", &begin, "groups"_a, "max_grad_norm"_a = nb::none(), "loss_scale"_a = nb::none(),
            "Starts a step with the settings of each parameter group, in the optimizer's order. The server divides the "
            "gradient by loss_scale, (scale, good steps before at this scale), if it is given, and then clips its "
            "global norm to max_grad_norm, if that is given. Returns False: workers need not pull alike.")
        .def_prop_ro(
            "trace_request", [](const fabric::Endpoint& self) { return make_trace_asked(self.trace_request()); },
            "What this worker records of the attempt that began last: (the most records, it is the last attempt of the "
            "trace); 0 records: nothing.")
        .def_prop_ro("grad_norm", &grad_norm,
                     "The global norm of the last step's gradient, before clipping; None without clipping.")
        .def("pull", &fabric::Endpoint::pull, "block"_a, "alone"_a = false, nb::call_guard<nb::gil_scoped_release>(),
             "Asks for a block; `alone` says that the step's other workers do not, which matters over a network.")
        .def("release", &fabric::Endpoint::release, "block"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("push", &fabric::Endpoint::push, "block"_a, "arena_offset"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Sends a block's gradient; the handle is done when the buffer may be used again.")
        .def("commit", &fabric::Endpoint::vote, "skip"_a = false, nb::call_guard<nb::gil_scoped_release>(),
             "Ends the step. wait returns 1: committed; 0: rolled back, as `skip` asks; 3: rolled back, because a "
             "gradient was not finite; 4: void, because a worker was lost.")
        .def("initialise", &fabric::Endpoint::initialise, "block"_a, "arena_offset"_a,
             nb::call_guard<nb::gil_scoped_release>(), "Writes a block's first values, fp32 in the arena.")
        .def("finish_initialise", &fabric::Endpoint::finish_initialise, nb::call_guard<nb::gil_scoped_release>())
        .def("wait", &wait, "handle"_a, "Blocks until a request is done; raises the server's error if it failed.")
        .def("count_wait", &fabric::Endpoint::count_wait, "begun_ns"_a, "waited_since_ns"_a,
             "Adds the time since begun_ns to the time of communication, and the time since waited_since_ns to that of "
             "waiting. Both are of time.monotonic_ns().")
        .def("stats", &endpoint_stats,
             "bytes_pulled and bytes_pushed count when a block is asked for or handed over; busy_seconds is the time "
             "in which anything was under way, wait_seconds that in which the worker stood still for it.");
}

}  // namespace

void bind_fabric(nb::module_& module) {
    auto server = bind_server(module);
    bind_traces(server, [](auto& self) -> auto& { return self.core(); });
    bind_endpoint(module);
}

}  // namespace luwu::bindings
