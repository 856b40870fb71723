#include "pipeline/chunk_update.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/crc32c.h"
#include "kernels/keep.h"
#include "kernels/trimmed_mean.h"

namespace luwu::pipeline {

namespace {

// Elements of a tile, of which every plane stays in the second-level cache between checksum, update and checksum.
constexpr std::uint64_t kTileElements = 8192;
static_assert(kTileElements % kernels::kCellElements == 0);

// Several workers' gradients, of which the outermost values are left out.
bool is_trimmed(const ChunkUpdate& update) { return update.trims > 0 && update.gradients.size() > 1; }

// The workers' buffers from an element on.
class Buffers {
  public:
    Buffers(const ChunkUpdate& update, std::uint64_t first) : update_(update) {
        if (update.gradients.size() > few_.size()) many_.resize(update.gradients.size());
        const void** buffers = many_.empty() ? few_.data() : many_.data();
        for (std::size_t worker = 0; worker < update.gradients.size(); ++worker) {
            buffers[worker] = update.gradients[worker] + first * kernels::size_of(update.gradient_dtype);
        }
    }

    [[nodiscard]] kernels::Gradients gradients() const {
        const void* const* const buffers = many_.empty() ? few_.data() : many_.data();
        return {buffers, update_.gradients.size(), update_.gradient_dtype, update_.scale};
    }

  private:
    const ChunkUpdate& update_;
    std::array<const void*, 64> few_{};
    std::vector<const void*> many_;
};

class Updater {
  public:
    explicit Updater(const ChunkUpdate& update)
        : update_(update),
          size_(kernels::size_of(update.dtype)),
          low_(update.dtype != kernels::Dtype::float32),
          planes_(update.place->state_planes) {
        std::ranges::copy(update.codes, codes_.begin());
        for (std::uint32_t plane = 0; plane < planes_; ++plane) {
            state_[plane] = update.states + update.place->plane_offset(plane);
            coded_ = coded_ || (codes_[plane] != StateCode::float32 && codes_[plane] != StateCode::remainder);
        }
        if (is_trimmed(update)) average_.resize(kTileElements);
        segment_ = std::upper_bound(update.segments.begin(), update.segments.end(), update.place->first_element,
                                    [](std::uint64_t element, const Segment& s) { return element < s.end; });
    }

    ChunkUpdateResult run() {
        Checksums before{};
        for (std::uint64_t first = 0; first < update_.place->elements; first += kTileElements) {
            const std::uint64_t elements = std::min(kTileElements, update_.place->elements - first);
            if (update_.verify) add_states(before, first, elements);
            result_.finite &= coded_ ? update_cells(first, elements) : update_run(first, elements, where(first));
            if (!result_.finite) return result_;
            if (update_.seals) seal(first, elements);
        }
        if (update_.verify) compare(before);
        return result_;
    }

    ChunkUpdateResult checksums() {
        seal(0, update_.place->elements);
        return result_;
    }

  private:
    using Checksums = std::array<std::uint32_t, store::kMaximumPlanes>;
    using StateCode = kernels::StateCode;

    // Elements `first` on, which lie at `at`, each with its parameter group's settings.
    bool update_run(std::uint64_t first, std::uint64_t elements, const kernels::Elements& at) {
        const std::uint64_t start = first;
        const std::uint64_t run_end = first + elements;
        bool finite = true;
        while (first < run_end) {
            const std::uint64_t segment_end = segment_->end - update_.place->first_element;
            const std::uint64_t end = std::min(run_end, segment_end);
            finite &= update_range(first, end - first, at.from(first - start), update_.groups[segment_->group]);
            if (end == segment_end) ++segment_;
            first = end;
        }
        return finite;
    }

    bool update_range(std::uint64_t first, std::uint64_t elements, const kernels::Elements& at,
                      const kernels::Step& step) {
        const Buffers buffers(update_, first);
        kernels::Gradients gradients = buffers.gradients();
        const void* average = average_.data();
        if (is_trimmed(update_)) {
            kernels::trimmed_mean(average_.data(), gradients, update_.trims, elements);
            gradients = {&average, 1, kernels::Dtype::float32, update_.scale};
        }
        return update_.optimizer->update(kernels::best_instruction_set(), at, gradients, elements, step);
    }

    // A cell at a time is decoded, updated and encoded in the first-level cache.
    bool update_cells(std::uint64_t first, std::uint64_t elements) {
        bool finite = true;
        for (const std::uint64_t end = first + elements; first < end; first += kernels::kCellElements) {
            const std::uint64_t count = std::min<std::uint64_t>(kernels::kCellElements, end - first);
            const kernels::Elements at = decode(first, count);
            finite &= update_run(first, count, at);
            if (finite) encode(first, count, at);
        }
        return finite;
    }

    [[nodiscard]] kernels::Elements where(std::uint64_t first) {
        kernels::Elements at;
        if (in_halves()) {
            at.remainder = reinterpret_cast<std::uint16_t*>(plane(0, first));
        } else {
            at.master = reinterpret_cast<float*>(low_ ? plane(0, first) : update_.parameters + first * size_);
        }
        at.low = low_ ? copy(first) : nullptr;
        at.low_dtype = update_.dtype;
        for (std::uint32_t own = low_ ? 1 : 0, i = 0; own < planes_; ++own, ++i) {
            at.states[i] = reinterpret_cast<float*>(plane(own, first));
        }
        return at;
    }

    [[nodiscard]] kernels::Elements decode(std::uint64_t first, std::uint64_t count) {
        kernels::Elements at = where(first);
        for (std::uint32_t own = low_ ? 1 : 0, i = 0; own < planes_; ++own, ++i) {
            if (codes_[own] == StateCode::float32) continue;
            at.states[i] = cell_[i].data();
            kernels::decode(codes_[own], plane(own, first), at.states[i], count);
        }
        return at;
    }

    void encode(std::uint64_t first, std::uint64_t count, const kernels::Elements& at) {
        for (std::uint32_t own = low_ ? 1 : 0, i = 0; own < planes_; ++own, ++i) {
            if (codes_[own] == StateCode::float32) continue;
            kernels::encode(codes_[own], at.states[i], plane(own, first), count, update_.count);
        }
    }

    // Address of element `first`, which begins a tile or a cell, in a state plane.
    [[nodiscard]] std::byte* plane(std::uint32_t index, std::uint64_t first) const {
        return state_[index] + kernels::plane_bytes(codes_[index], first);
    }
    // The master is in the parameters and in the first plane.
    [[nodiscard]] bool in_halves() const { return codes_[0] == StateCode::remainder; }
    [[nodiscard]] std::uint16_t* copy(std::uint64_t first) const {
        return reinterpret_cast<std::uint16_t*>(update_.parameters) + first;
    }

    void add_states(Checksums& crcs, std::uint64_t first, std::uint64_t elements) const {
        std::array<const void*, store::kMaximumPlanes> data{};
        for (std::uint32_t i = 0; i < planes_; ++i) data[i] = plane(i, first);
        const std::uint32_t others = coded_ ? planes_ : in_halves() ? 1 : 0;  // planes that are no floats come first
        for (std::uint32_t i = 0; i < others; ++i) {
            crcs[i] = kernels::crc32c(crcs[i], data[i], kernels::plane_bytes(codes_[i], elements));
        }
        if (others == planes_) return;
        kernels::crc32c_parallel(crcs.data() + others, data.data() + others, planes_ - others,
                                 elements * sizeof(float));
    }

    void seal(std::uint64_t first, std::uint64_t elements) {
        add_states(result_.state_crc, first, elements);
        result_.parameter_crc =
            kernels::crc32c(result_.parameter_crc, update_.parameters + first * size_, elements * size_);
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
    bool low_;
    bool coded_ = false;
    std::uint32_t planes_;
    std::array<StateCode, store::kMaximumPlanes> codes_{};
    std::array<std::byte*, store::kMaximumPlanes> state_{};
    std::span<const Segment>::iterator segment_;
    ChunkUpdateResult result_;
    std::vector<float> average_;  // of a tile, where values are left out
    // The states of a coded chunk's cell.
    alignas(64) std::array<std::array<float, kernels::kCellElements>, kernels::kMaximumStates> cell_;
};

}  // namespace

double keep_chunk(const ChunkUpdate& update, void* kept) {
    const std::uint64_t elements = update.place->elements;
    if (!is_trimmed(update)) return kernels::keep_gradients(kept, Buffers(update, 0).gradients(), elements);
    std::vector<float> average(kTileElements);
    const void* const buffer = average.data();
    double squares = 0;
    for (std::uint64_t first = 0; first < elements; first += kTileElements) {
        const std::uint64_t count = std::min(kTileElements, elements - first);
        kernels::trimmed_mean(average.data(), Buffers(update, first).gradients(), update.trims, count);
        squares += kernels::keep_gradients(static_cast<float*>(kept) + first,
                                           {&buffer, 1, kernels::Dtype::float32, update.scale}, count);
    }
    return squares;
}

ChunkUpdateResult update_chunk(const ChunkUpdate& update) { return Updater(update).run(); }

ChunkUpdateResult checksums_of(const ChunkUpdate& record) { return Updater(record).checksums(); }

}  // namespace luwu::pipeline
