#include "pipeline/chunk_update.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/crc32c.h"

namespace luwu::pipeline {

namespace {

// One tile of every plane stays in the second-level cache between the checksum, the update and the checksum again.
constexpr std::uint64_t kTileElements = 8192;

class Updater {
  public:
    explicit Updater(const ChunkUpdate& update)
        : update_(update), size_(kernels::size_of(update.dtype)), planes_(update.place->state_planes) {
        for (std::uint32_t plane = 0; plane < planes_; ++plane) {
            state_[plane] = update.states + update.place->plane_offset(plane);
        }
        segment_ = std::upper_bound(update.segments.begin(), update.segments.end(), update.place->first_element,
                                    [](std::uint64_t element, const Segment& s) { return element < s.end; });
    }

    ChunkUpdateResult run() {
        Checksums before{};
        for (std::uint64_t first = 0; first < update_.place->elements; first += kTileElements) {
            const std::uint64_t elements = std::min(kTileElements, update_.place->elements - first);
            if (update_.verify) add_states(before, first, elements);
            result_.finite &= update_tile(first, elements);
            if (!result_.finite) return result_;
            add_states(result_.state_crc, first, elements);
            result_.parameter_crc =
                kernels::crc32c(result_.parameter_crc, update_.parameters + first * size_, elements * size_);
        }
        if (update_.verify) compare(before);
        return result_;
    }

  private:
    using Checksums = std::array<std::uint32_t, store::kMaximumPlanes>;

    bool update_tile(std::uint64_t first, std::uint64_t elements) {
        const std::uint64_t tile_end = first + elements;
        bool finite = true;
        while (first < tile_end) {
            const std::uint64_t segment_end = segment_->end - update_.place->first_element;
            const std::uint64_t end = std::min(tile_end, segment_end);
            finite &= update_range(first, end - first, update_.groups[segment_->group]);
            if (end == segment_end) ++segment_;
            first = end;
        }
        return finite;
    }

    bool update_range(std::uint64_t first, std::uint64_t elements, const kernels::Step& step) {
        std::array<const void*, 64> few{};
        std::vector<const void*> many;
        const void** buffers = few.data();
        if (update_.gradients.size() > few.size()) {
            many.resize(update_.gradients.size());
            buffers = many.data();
        }
        for (std::size_t worker = 0; worker < update_.gradients.size(); ++worker) {
            buffers[worker] = update_.gradients[worker] + first * kernels::size_of(update_.gradient_dtype);
        }
        const kernels::Gradients gradients{buffers, update_.gradients.size(), update_.gradient_dtype, update_.scale};
        return update_.optimizer->update(kernels::best_instruction_set(), where(first), gradients, elements, step);
    }

    [[nodiscard]] kernels::Elements where(std::uint64_t first) const {
        kernels::Elements at;
        const bool low = update_.dtype == kernels::Dtype::bfloat16;
        at.master = low ? plane(0, first) : reinterpret_cast<float*>(update_.parameters) + first;
        at.low = low ? reinterpret_cast<std::uint16_t*>(update_.parameters) + first : nullptr;
        for (std::uint32_t own = low ? 1 : 0, i = 0; own < planes_; ++own, ++i) at.states[i] = plane(own, first);
        return at;
    }

    float* plane(std::uint32_t index, std::uint64_t first) const {
        return reinterpret_cast<float*>(state_[index]) + first;
    }

    void add_states(Checksums& crcs, std::uint64_t first, std::uint64_t elements) const {
        std::array<const void*, store::kMaximumPlanes> data{};
        for (std::uint32_t i = 0; i < planes_; ++i) data[i] = plane(i, first);
        kernels::crc32c_parallel(crcs.data(), data.data(), planes_, elements * sizeof(float));
    }

    void compare(const Checksums& before) {
        store::ChunkHeader header;
        std::memcpy(&header, update_.states, sizeof header);
        for (std::uint32_t i = planes_; i-- > 0;) {
            if (before[i] != header.state_crc[i]) result_.damaged_plane = i + 1;
        }
    }

    const ChunkUpdate& update_;
    std::uint64_t size_;
    std::uint32_t planes_;
    std::array<std::byte*, store::kMaximumPlanes> state_{};
    std::span<const Segment>::iterator segment_;
    ChunkUpdateResult result_;
};

}  // namespace

ChunkUpdateResult update_chunk(const ChunkUpdate& update) { return Updater(update).run(); }

}  // namespace luwu::pipeline
