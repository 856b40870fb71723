#include "pipeline/update_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/convert.h"
#include "kernels/trimmed_mean.h"
#include "pipeline/chunk_update.h"
#include "store/aligned_buffer.h"

namespace luwu::pipeline {

namespace {

using Clock = std::chrono::steady_clock;

constexpr float kGradient = 1e-3F;
constexpr kernels::HyperParameters kSettings{1e-3, 0.9, 0.99, 1e-8, 0.01, 0};  // times are the same for any

store::Layout layout_of(const UpdateProbe& probe) {
    store::StoreShape shape;
    shape.optimizer = probe.optimizer;
    shape.chunk_elements = probe.chunk_elements;
    shape.blocks = {{"measured", probe.elements, true, probe.dtype}};
    return {shape, 1};
}

// All chunks' memory: states in one piece, as a server has them. Everything begins as zeros, as in a fresh store, but
// gradients.
class Memory {
  public:
    Memory(const store::Layout& layout, const UpdateProbe& probe) : parameters_(layout.window_bytes(0)) {
        std::uint64_t state_bytes = 0;
        for (const store::ChunkPlace& place : layout.chunks()) {
            offsets_.push_back(state_bytes);
            state_bytes += place.state_bytes();
        }
        states_ = store::AlignedBuffer(state_bytes);
        std::memset(states_.data(), 0, states_.bytes());  // or the kernel would find pages while time is taken
        std::uint16_t low = 0;
        if (probe.dtype != kernels::Dtype::float32) kernels::float_to_low(probe.dtype, &kGradient, &low, 1);
        for (std::uint32_t worker = 0; worker < probe.workers; ++worker) {
            const store::AlignedBuffer& gradient = gradients_.emplace_back(layout.shape().blocks[0].bytes());
            if (probe.dtype == kernels::Dtype::float32) {
                std::fill_n(reinterpret_cast<float*>(gradient.data()), probe.elements, kGradient);
            } else {
                std::fill_n(reinterpret_cast<std::uint16_t*>(gradient.data()), probe.elements, low);
            }
        }
    }

    [[nodiscard]] ChunkUpdate update_of(const store::ChunkPlace& place, std::size_t number, const UpdateProbe& probe,
                                        std::span<const kernels::StateCode> codes) const {
        const std::uint64_t first_byte = place.first_element * kernels::size_of(probe.dtype);
        ChunkUpdate update;
        update.place = &place;
        update.optimizer = probe.optimizer;
        update.codes = codes;
        update.dtype = update.gradient_dtype = probe.dtype;
        update.parameters = parameters_.data() + first_byte;
        update.states = states_.data() + offsets_[number];
        for (const store::AlignedBuffer& gradient : gradients_) {
            update.gradients.push_back(gradient.data() + first_byte);
        }
        update.scale = 1.0F / static_cast<float>(probe.workers);
        update.trims = probe.trims;
        update.verify = probe.verify;
        return update;
    }

  private:
    store::AlignedBuffer parameters_;
    store::AlignedBuffer states_;
    std::vector<std::uint64_t> offsets_;  // of each chunk's states
    std::vector<store::AlignedBuffer> gradients_;
};

}  // namespace

UpdateRate measure_update(const UpdateProbe& probe) {
    if (probe.workers == 0 || probe.threads == 0 || probe.elements < probe.threads * probe.chunk_elements) {
        throw Error(ErrorKind::invalid,
                    "an update is measured with at least a worker, a thread and a chunk for each "
                    "thread; found " +
                        std::to_string(probe.workers) + " workers, " + std::to_string(probe.threads) + " threads and " +
                        std::to_string(probe.elements) + " elements");
    }
    if (probe.trims > 0 && !kernels::can_trim(probe.workers, probe.trims)) {
        throw Error(ErrorKind::invalid, "the values of " + std::to_string(probe.workers) +
                                            " workers cannot be without " + std::to_string(probe.trims) +
                                            " at each end; run more workers, at most " +
                                            std::to_string(kernels::kMostTrimmed));
    }
    const store::Layout layout = layout_of(probe);
    const Memory memory(layout, probe);
    const std::vector<Segment> segments{{probe.elements, 0}};
    std::atomic<std::uint64_t> elements = 0;
    std::atomic<bool> begun = false;
    Clock::time_point begin;
    const auto work = [&](std::size_t thread) {
        begun.wait(false);
        for (std::uint64_t count = 1;; ++count) {
            const std::vector<kernels::Step> groups{probe.optimizer->prepare(kSettings, count)};
            for (std::size_t chunk = thread; chunk < layout.chunks().size(); chunk += probe.threads) {
                ChunkUpdate update = memory.update_of(layout.chunks()[chunk], chunk, probe, layout.plane_codes(0));
                update.count = count;
                update.segments = segments;
                update.groups = groups;
                static_cast<void>(update_chunk(update));
                elements += layout.chunks()[chunk].elements;
                if (std::chrono::duration<double>(Clock::now() - begin).count() >= probe.seconds) return;
            }
        }
    };
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < probe.threads; ++thread) threads.emplace_back(work, thread);
    begin = Clock::now();
    begun = true;
    begun.notify_all();
    for (std::thread& thread : threads) thread.join();
    return {elements, std::chrono::duration<double>(Clock::now() - begin).count()};
}

}  // namespace luwu::pipeline
