#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings/bindings.h"
#include "bindings/interrupts.h"
#include "bindings/without_gil.h"
#include "device/engine.h"
#include "fabric/shm/endpoint_plane.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>>;

// An exception of Python may not outlive the lock: its class and words are kept.
template <class Call>
auto called(const Call& call) {
    try {
        return call();
    } catch (nb::python_error& error) {
        const std::string name = nb::cast<std::string>(error.type().attr("__name__"));
        throw Error(kind_of(name), nb::cast<std::string>(nb::str(error.value())));
    }
}

// An endpoint that is written in Python: each call takes Python's lock.
class PythonPlane final : public fabric::DataPlane {
  public:
    explicit PythonPlane(nb::object endpoint) : endpoint_(std::move(endpoint)) {}
    ~PythonPlane() override {
        const nb::gil_scoped_acquire lock;
        endpoint_.reset();
    }
    PythonPlane(const PythonPlane&) = delete;
    PythonPlane& operator=(const PythonPlane&) = delete;

    Handle pull(std::uint32_t block, bool alone) override {
        const nb::gil_scoped_acquire lock;
        return called([&] { return nb::cast<Handle>(endpoint_.attr("pull")(block, alone)); });
    }
    void release(std::uint32_t block) override {
        const nb::gil_scoped_acquire lock;
        called([&] { return endpoint_.attr("release")(block).is_none(); });
    }
    Handle push(std::uint32_t block, std::uint64_t arena_offset) override {
        const nb::gil_scoped_acquire lock;
        return called([&] { return nb::cast<Handle>(endpoint_.attr("push")(block, arena_offset)); });
    }
    std::optional<std::int64_t> wait(Handle handle, std::chrono::milliseconds) override {
        const nb::gil_scoped_acquire lock;
        return called([&] { return nb::cast<std::int64_t>(endpoint_.attr("wait")(handle)); });
    }

    void stood_still(std::uint64_t) override {}  // an endpoint in Python counts its own waits

  private:
    nb::object endpoint_;
};

std::unique_ptr<fabric::DataPlane> plane_of(const nb::object& endpoint) {
    if (nb::isinstance<fabric::Endpoint>(endpoint)) {
        return std::make_unique<fabric::EndpointPlane>(nb::cast<fabric::Endpoint&>(endpoint));
    }
    return std::make_unique<PythonPlane>(endpoint);
}

std::span<std::byte> span_of(const Bytes& memory) {
    return {reinterpret_cast<std::byte*>(memory.data()), memory.size()};
}

// Native threads call it and destroy it, too: each takes Python's lock.
std::function<void()> with_lock(const nb::callable& call) {
    const std::shared_ptr<nb::callable> kept(new nb::callable(call), [](const nb::callable* last) {
        const nb::gil_scoped_acquire lock;
        delete last;
    });
    return [kept] {
        const nb::gil_scoped_acquire lock;
        called([&] { return (*kept)().is_none(); });
    };
}

// A base of the engine, so that the plane is destroyed after it.
class PlaneOfEngine {
  protected:
    explicit PlaneOfEngine(const nb::object& endpoint) : plane(plane_of(endpoint)) {}
    std::unique_ptr<fabric::DataPlane> plane;
};

class OwningEngine : private PlaneOfEngine, public device::CopyEngine {
  public:
    OwningEngine(const nb::object& endpoint, const std::string& library, int ordinal,
                 std::vector<std::uint64_t> block_bytes, const Bytes& window, const Bytes& arena, std::uint32_t depth,
                 std::vector<std::uint32_t> kept, const nb::callable& make_room)
        : PlaneOfEngine(endpoint),
          CopyEngine({std::make_shared<device::Driver>(library), ordinal, std::move(block_bytes), span_of(window),
                      span_of(arena), depth, std::move(kept), with_lock(make_room)},
                     *plane) {}
};

using Engine = WithoutGil<OwningEngine>;

device::Stream stream_of(std::uintptr_t handle) { return reinterpret_cast<device::Stream>(handle); }

// Waits for an address on the device, of a block's parameters or of its gradient.
template <auto Method>
device::Address address_from(Engine& engine, std::uint32_t block, std::uintptr_t stream) {
    return *wait_for([&](auto at_most) { return (engine.*Method)(block, stream_of(stream), at_most); });
}

nb::dict engine_stats(const Engine& engine) {
    const device::EngineStats stats = engine.stats();
    nb::dict result;
    result["pinned_bytes"] = stats.pinned_bytes;
    result["device_bytes"] = stats.device_bytes;
    result["wait_seconds"] = static_cast<double>(stats.wait_nanoseconds) * 1e-9;
    return result;
}

}  // namespace

void bind_device(nb::module_& module) {
    nb::class_<Engine>(module, "CopyEngine",
                       "Copies blocks between an endpoint's memory and a device, beside what the device computes. "
                       "Streams are the driver's handles, as torch.cuda.Stream.cuda_stream has them; addresses are the "
                       "device's. Raises DeviceError, and what the endpoint raises.")
        .def(nb::init<const nb::object&, const std::string&, int, std::vector<std::uint64_t>, const Bytes&,
                      const Bytes&, std::uint32_t, std::vector<std::uint32_t>, const nb::callable&>(),
             "endpoint"_a, "library"_a, "ordinal"_a, "block_bytes"_a, "window"_a, "arena"_a, "depth"_a, "kept"_a,
             "make_room"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
             "Loads the driver's library and locks both memories in place. `depth`: buffers of each size and "
             "direction; `kept`: blocks that are held for long, for which there is one more each; `make_room` is "
             "called, in any thread, when the device has no memory for a buffer, which is then tried once more.")
        .def(
            "request",
            [](Engine& self, std::uint32_t block, bool alone) {
                wait_for([&](auto at_most) { return self.request(block, alone, at_most); });
            },
            "block"_a, "alone"_a,
            "Pulls a block, which is copied to the device when it has landed; waits until its last copy is made.")
        .def("take", &address_from<&Engine::take>, "block"_a, "stream"_a,
             "The block's address: the stream's later work sees its values.")
        .def(
            "release",
            [](Engine& self, std::uint32_t block, std::uintptr_t stream) {
                wait_for([&](auto at_most) { return self.release(block, stream_of(stream), at_most); });
            },
            "block"_a, "stream"_a, "Gives a block back: the stream's work so far is the last that reads it.")
        .def("gradient", &address_from<&Engine::gradient>, "block"_a, "stream"_a,
             "An address for the block's gradient, which the stream's later work writes.")
        .def(
            "push",
            [](Engine& self, std::uint32_t block, std::uintptr_t stream) { self.push(block, stream_of(stream)); },
            "block"_a, "stream"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Pushes the gradient when the stream's work so far and its copy have ended.")
        .def("drop_gradient", &Engine::drop_gradient, "block"_a, "The gradient is not pushed.")
        .def(
            "settle", [](Engine& self) { wait_for([&](auto at_most) { return self.settle(at_most); }); },
            "Waits until every copy has ended, every block that was released is given back and every push is posted.")
        .def(
            "take_pushed",
            [](Engine& self) {
                std::vector<std::pair<std::uint32_t, std::int64_t>> pushed;
                for (const device::Pushed& push : self.take_pushed()) pushed.emplace_back(push.block, push.handle);
                return pushed;
            },
            "(block, handle) of each push that was posted since the last call.")
        .def("answered", &Engine::answered, "Every push has been answered: the attempt has ended.")
        .def("stats", &engine_stats,
             "pinned_bytes of host memory, device_bytes of buffers, wait_seconds in take and gradient.");
    module.def(
        "device_bytes",
        [](std::uintptr_t address, std::uint64_t bytes, int device_type, int ordinal, nb::object owner) {
            return nb::ndarray<std::uint8_t, nb::ndim<1>, nb::pytorch>(
                reinterpret_cast<void*>(address), {bytes}, owner, {}, nb::dtype<std::uint8_t>(), device_type, ordinal);
        },
        "address"_a, "nbytes"_a, "device_type"_a, "ordinal"_a, "owner"_a,
        "A tensor of bytes at an address of a device (DLPack's device type), which keeps the owner alive.");
}

}  // namespace luwu::bindings
