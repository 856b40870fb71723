// The state that the parts of a pipeline share, guarded by one lock, and the parts themselves. A part's function that
// takes the lock itself says so; every other is called with the lock held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "pipeline/types.h"
#include "schedule/pass.h"
#include "schedule/state_cache.h"
#include "schedule/window_cache.h"
#include "step/machine.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

class Executor;
class Gradients;
struct IoTask;
class Keeping;
class Optimizers;
class OwedUpdates;
class Parameters;
class PointWrites;
class States;
class Updates;
class Writing;

struct Shared {
    Shared(store::ChunkStore& store_, PipelineSettings settings_);

    store::ChunkStore& store;
    const store::Layout& layout;
    PipelineSettings settings;
    std::mutex mutex;
    std::condition_variable changed;  // a step ended or was written, or the run failed
    step::Machine machine;
    schedule::Pass pass;
    schedule::WindowCache window;
    schedule::StateCache states;
    Room room;
    PipelineStats stats;  // counts alone; what the machine knows is added to them
    trace::Recorder& recorder;
    bool initialised;  // the store has values
    std::uint32_t reads_in_flight = 0;
    std::chrono::steady_clock::time_point committed_at = std::chrono::steady_clock::now();

    struct Parts {
        Executor* executor = nullptr;
        Gradients* gradients = nullptr;
        Keeping* keeping = nullptr;
        Optimizers* optimizers = nullptr;
        OwedUpdates* owed = nullptr;
        Parameters* parameters = nullptr;
        PointWrites* points = nullptr;
        States* states = nullptr;
        Updates* updates = nullptr;
        Writing* writing = nullptr;
    } parts;

    [[nodiscard]] const step::State& step() const { return machine.state(); }
    [[nodiscard]] bool failed() const { return step().failed(); }
    [[nodiscard]] const store::ChunkPlace& place(std::uint32_t chunk) const { return layout.chunks()[chunk]; }
    [[nodiscard]] std::uint32_t chunks_of(std::uint32_t block) const {
        return static_cast<std::uint32_t>(layout.chunks_of(block).size());
    }
    // Memory keeps the chunk's whole record from one step to the next.
    [[nodiscard]] bool stays(std::uint32_t chunk) const {
        return states.pinned(chunk) && window.pinned(place(chunk).block);
    }
    // The step whose update of the block is under way, or comes next.
    [[nodiscard]] std::uint64_t step_of_update(std::uint32_t block) const {
        return step().progress.step() + (step().blocks[block].stale() ? 0 : 1);
    }
    // The step that a read of the block is for: after its update, the next one.
    [[nodiscard]] std::uint64_t step_of_read(std::uint32_t block) const;
    void note(trace::Kind kind, const IoTask& task);  // without the lock: a transfer ended
    // The reply, and a record of the time until it is called.
    [[nodiscard]] Reply recorded(trace::Kind kind, std::uint32_t stream, std::uint32_t block, std::uint64_t bytes,
                                 Reply reply);
    [[nodiscard]] std::byte* parameters_of(const store::ChunkPlace& place) const;  // in the window
    [[nodiscard]] kernels::Dtype gradient_dtype(std::uint32_t block) const;
};

}  // namespace luwu::pipeline
