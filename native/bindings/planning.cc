// Forecast of a store and its server before either exists: the layout and the residency plan as the server makes them,
// and the bytes that a step then moves between disk and memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings/bindings.h"
#include "bindings/store_shape.h"
#include "schedule/residency.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace luwu::bindings {

namespace {

constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60U;

struct StepTraffic {
    std::uint64_t parameters_read = 0;  // in one pass over the model
    std::uint64_t states_read = 0;
    std::uint64_t written = 0;
    std::uint64_t chunk_states = 0;  // of the largest chunk
    std::uint64_t chunk_record = 0;
    std::uint64_t written_pinned = 0;   // of chunks whose states stay in memory
    std::uint64_t written_between = 0;  // by a step that is no commit point: of chunks that do not stay whole
};

// A pass turns round at both ends of the model, where the slots hold what is needed next.
StepTraffic traffic_of(const store::Layout& layout, const schedule::ResidencyPlan& plan) {
    StepTraffic traffic;
    std::uint64_t rotating = 0;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        if (plan.pinned_offset[block] < 0) rotating += layout.window_bytes(block);
    }
    const std::uint64_t kept = std::uint64_t{plan.slots} * plan.slot_bytes;
    traffic.parameters_read = rotating - std::min(rotating, kept);
    for (std::size_t i = 0; i < layout.chunks().size(); ++i) {
        const store::ChunkPlace& place = layout.chunks()[i];
        if (!place.trainable) continue;
        if (plan.state_pinned[i]) {
            traffic.written_pinned += place.record_bytes();
        } else {
            traffic.states_read += place.state_bytes();
        }
        traffic.written += place.record_bytes();
        const bool stays = plan.state_pinned[i] && plan.pinned_offset[place.block] >= 0;
        traffic.written_between += stays ? 0 : place.record_bytes();
        traffic.chunk_states = std::max(traffic.chunk_states, place.state_bytes());
        traffic.chunk_record = std::max(traffic.chunk_record, place.record_bytes());
    }
    return traffic;
}

struct KeptTraffic {
    std::uint64_t memory = 0;  // bytes of kept gradients that stay there, and of buffers for the others
    std::uint64_t disk = 0;    // bytes of the others, which a step writes and reads
    double tail = 0;           // share of the gradients that memory keeps where updates are behind
};

// Makes room in the plan for all gradients, which are kept until a step is decided.
KeptTraffic keep_all(const store::Layout& layout, schedule::ResidencyPlan& plan,
                     const std::vector<kernels::Dtype>& dtypes) {
    const schedule::ClippingPlan divided = schedule::plan_clipping(layout, std::move(plan), dtypes);
    plan = divided.plan;
    KeptTraffic traffic{divided.kept.pinned_bytes + divided.kept.buffers * divided.kept.buffer_bytes};
    for (std::size_t i = 0; i < layout.chunks().size(); ++i) {
        const store::ChunkPlace& place = layout.chunks()[i];
        const bool on_disk = place.trainable && !divided.kept.pinned[i];
        traffic.disk += on_disk ? schedule::kept_bytes(place, dtypes[place.block]) : 0;
    }
    return traffic;
}

// Makes room for those that updates are behind with.
KeptTraffic keep_tail(const store::Layout& layout, schedule::ResidencyPlan& plan,
                      const std::vector<kernels::Dtype>& dtypes) {
    const schedule::KeptPlan kept = schedule::plan_tail(layout, plan, dtypes);
    const auto chunks = std::count_if(layout.chunks().begin(), layout.chunks().end(),
                                      [](const store::ChunkPlace& place) { return place.trainable; });
    KeptTraffic traffic{kept.buffers * kept.buffer_bytes};
    traffic.tail = chunks > 0 ? static_cast<double>(kept.buffers) / static_cast<double>(chunks) : 0;
    plan.total_bytes += traffic.memory;
    return traffic;
}

nb::dict plan_store(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements, const std::string& optimizer,
                    std::uint32_t folders, std::uint64_t memory_bytes, std::uint32_t workers, bool float32_gradients,
                    const std::string& keeps) {
    const store::Layout layout(make_shape(blocks, chunk_elements, optimizer), folders);
    std::vector<bool> held;
    for (const BlockSpec& block : blocks) held.push_back(block.held);
    const auto gradients = float32_gradients ? std::optional(kernels::Dtype::float32) : std::nullopt;
    const auto divide = [&](std::uint64_t bytes) {
        return schedule::plan_residency(layout, bytes, workers, held, gradients);
    };
    const std::uint64_t minimum = divide(kUnlimited).minimum_bytes;
    const std::uint64_t budget = std::max(memory_bytes, minimum);
    const auto dtypes = schedule::kept_dtypes(layout, workers, gradients);
    schedule::ResidencyPlan plan =
        keeps == "tail" ? schedule::plan_with_tail(layout, budget, workers, held, gradients, dtypes) : divide(budget);
    KeptTraffic kept;
    if (keeps == "tail") kept = keep_tail(layout, plan, dtypes);
    if (keeps == "all") kept = keep_all(layout, plan, dtypes);
    const StepTraffic traffic = traffic_of(layout, plan);
    std::vector<std::uint64_t> files;
    for (std::uint32_t stripe = 0; stripe < layout.stripes(); ++stripe) files.push_back(layout.file_bytes(stripe));
    nb::dict result;
    result["file_bytes"] = files;
    result["minimum_bytes"] = minimum;
    result["total_bytes"] = plan.total_bytes;
    result["window_bytes"] = plan.window_bytes;
    result["pinned_state_bytes"] = plan.pinned_state_bytes;
    result["state_buffer_bytes"] = plan.state_buffers * plan.state_buffer_bytes;
    result["arena_bytes"] = plan.arena_bytes * workers;
    result["parameters_read_bytes"] = traffic.parameters_read;
    result["states_read_bytes"] = traffic.states_read;
    result["written_bytes"] = traffic.written;
    result["written_pinned_bytes"] = traffic.written_pinned;
    result["written_between_bytes"] = traffic.written_between;
    result["kept_bytes"] = kept.memory;
    result["kept_disk_bytes"] = kept.disk;
    result["tail_share"] = kept.tail;
    result["chunk_state_bytes"] = traffic.chunk_states;
    result["chunk_record_bytes"] = traffic.chunk_record;
    return result;
}

}  // namespace

void bind_planning(nb::module_& module) {
    module.attr("CHUNK_STEP") = store::kChunkStep;
    module.attr("LEAST_STATE_BUFFERS") = schedule::kStateBuffersMinimum;
    module.attr("PAGE_BYTES") = store::kPage;
    module.def(
        "plan_store", &plan_store, "blocks"_a, "chunk_elements"_a, "optimizer"_a, "folders"_a, "memory_bytes"_a,
        "workers"_a, "float32_gradients"_a = false, "keeps"_a = "none",
        "Bytes that a store takes on disk and its server in memory, and what a step moves between them. A budget "
        "below minimum_bytes counts as that. Over UDP gradients come as one worker's, in float32. keeps: which "
        "gradients wait in memory until a step is decided: none; all, as between commit points; tail, those that "
        "updates are behind with.");
}

}  // namespace luwu::bindings
