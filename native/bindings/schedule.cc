// Python binding of the server's schedule without data (the window, read-ahead, eviction), for `luwu simulate`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "schedule/read_ahead.h"
#include "schedule/residency.h"
#include "store/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

class WindowSchedule {
  public:
    WindowSchedule(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements, const std::string& optimizer,
                   std::uint64_t memory_bytes)
        : layout_(make_shape(blocks, chunk_elements, optimizer), 1),
          plan_(schedule::plan_residency(layout_, memory_bytes, 1, held(blocks))),
          pass_(layout_.block_count(), 1),
          window_(plan_, pass_) {}

    void begin_step() { pass_.begin_step(0); }
    void end_step() { pass_.end_step(); }
    void pulled(std::uint32_t block) { pass_.pulled(0, checked(block)); }

    [[nodiscard]] bool resident(std::uint32_t block) const { return state(block) == State::resident; }
    [[nodiscard]] bool absent(std::uint32_t block) const { return state(block) == State::absent; }
    [[nodiscard]] bool place(std::uint32_t block) { return window_.place(checked(block)); }
    [[nodiscard]] std::optional<std::uint32_t> place_ahead() {
        return schedule::place_ahead(pass_, window_, 0, [](std::uint32_t) { return true; });
    }
    void read_done(std::uint32_t block) { window_.read_done(checked(block)); }
    void hold(std::uint32_t block) { window_.hold(checked(block)); }
    void unhold(std::uint32_t block) {
        if (window_.holds(checked(block)) == 0) {
            throw Error(ErrorKind::order, "block " + std::to_string(block) + " was given back, but nobody holds it");
        }
        window_.unhold(block);
    }

    // Bytes of a block's states that are not in memory for good, of all its states, and of a whole new version.
    [[nodiscard]] std::uint64_t rotating_state_bytes(std::uint32_t block) const {
        std::uint64_t bytes = 0;
        const std::uint32_t first = layout_.first_chunk(checked(block));
        const auto places = layout_.chunks_of(block);
        for (std::uint32_t i = 0; i < places.size(); ++i) {
            if (!plan_.state_pinned[first + i]) bytes += places[i].state_bytes();
        }
        return bytes;
    }
    [[nodiscard]] std::uint64_t record_bytes(std::uint32_t block) const {
        std::uint64_t bytes = 0;
        for (const store::ChunkPlace& place : layout_.chunks_of(checked(block))) bytes += place.record_bytes();
        return bytes;
    }
    [[nodiscard]] std::uint64_t parameter_bytes(std::uint32_t block) const {
        return layout_.window_bytes(checked(block));
    }

  private:
    using State = schedule::WindowCache::State;

    static std::vector<bool> held(const std::vector<BlockSpec>& blocks) {
        std::vector<bool> found;
        for (const BlockSpec& block : blocks) found.push_back(block.held);
        return found;
    }
    [[nodiscard]] State state(std::uint32_t block) const { return window_.state(checked(block)); }
    [[nodiscard]] std::uint32_t checked(std::uint32_t block) const {
        return checked_block(block, layout_.block_count());
    }

    store::Layout layout_;
    schedule::ResidencyPlan plan_;
    schedule::Pass pass_;
    schedule::WindowCache window_;
};

}  // namespace

void bind_schedule(nb::module_& module) {
    nb::class_<WindowSchedule>(module, "WindowSchedule",
                               "The parameters that a server has in memory, reads ahead and evicts, with one stream of "
                               "pulls; nothing is read or written.")
        .def(nb::init<const std::vector<BlockSpec>&, std::uint64_t, const std::string&, std::uint64_t>(), "blocks"_a,
             "chunk_elements"_a, "optimizer"_a, "memory_bytes"_a)
        .def("begin_step", &WindowSchedule::begin_step, "The pass begins again.")
        .def("end_step", &WindowSchedule::end_step, "Makes the pulls of the step the pass.")
        .def("pulled", &WindowSchedule::pulled, "block"_a, "Note a pull.")
        .def("resident", &WindowSchedule::resident, "block"_a, "True if a block's parameters are in memory.")
        .def("absent", &WindowSchedule::absent, "block"_a, "True if they are neither there nor being read.")
        .def("place", &WindowSchedule::place, "block"_a,
             "Give an absent block a place and mark it as being read; False: there is none now.")
        .def("place_ahead", &WindowSchedule::place_ahead,
             "Do so for the next absent block of the pass, and return it, or None.")
        .def("read_done", &WindowSchedule::read_done, "block"_a, "A block that was being read is resident.")
        .def("hold", &WindowSchedule::hold, "block"_a, "Keep a block that is in use resident until `unhold`.")
        .def("unhold", &WindowSchedule::unhold, "block"_a,
             "Release a hold on the block. Raises StepOrderError if nobody holds it.")
        .def("rotating_state_bytes", &WindowSchedule::rotating_state_bytes, "block"_a,
             "Bytes of a block's states that every update reads.")
        .def("record_bytes", &WindowSchedule::record_bytes, "block"_a, "Bytes that an update of a block writes.")
        .def("parameter_bytes", &WindowSchedule::parameter_bytes, "block"_a, "Bytes that a read of a block reads.");
}

}  // namespace luwu::bindings
