// Places of all chunks: pure arithmetic from the blocks' sizes, specified in docs/store-format.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/optimizer.h"

namespace luwu::store {

inline constexpr std::uint64_t kPage = 4096;  // alignment of every file offset, memory address and length (O_DIRECT)
inline constexpr std::uint64_t kChunkStep = 2048;  // chunk sizes are multiples of this, so 2-byte planes fill pages

inline constexpr std::uint32_t kVersions = 2;  // that a stripe has of its trainable chunks

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

// The place of a block's float32 values: its parameters, a state plane, or a plane of what bfloat16 parameters lack.
enum class Master : std::uint8_t { parameters, whole, remainder };
inline constexpr std::size_t kMasters = 3;

// A block as the store sees it: a flat run of elements of one dtype, trainable as a whole or frozen as a whole.
struct BlockShape {
    std::string name;
    std::uint64_t elements = 0;
    bool trainable = true;
    kernels::Dtype dtype = kernels::Dtype::float32;  // of its parameters, and of its gradients
    bool whole_master = false;                       // beside bfloat16 parameters, too: older stores have it

    [[nodiscard]] std::uint64_t bytes() const { return elements * kernels::size_of(dtype); }  // without padding
    [[nodiscard]] Master master() const {
        if (dtype == kernels::Dtype::float32) return Master::parameters;
        return dtype == kernels::Dtype::bfloat16 && !whole_master ? Master::remainder : Master::whole;
    }
};

// State planes of a chunk at most, as many as its header has checksums for: a master, and an optimizer's own.
inline constexpr std::size_t kMaximumPlanes = 1 + kernels::kMaximumStates;

struct StoreShape {
    const kernels::Optimizer* optimizer = &kernels::adamw;  // decides on the state planes
    std::uint64_t chunk_elements = 1U << 20;  // upper bound; a block is divided into equal chunks of at most this
    std::vector<BlockShape> blocks;
};

// A chunk on disk: [parameters | header page | states], in both versions' files when trainable, else in the frozen one.
struct ChunkPlace {
    std::uint32_t block = 0;
    std::uint32_t chunk = 0;  // within the block
    std::uint32_t stripe = 0;
    bool trainable = true;
    std::uint64_t first_element = 0;
    std::uint64_t elements = 0;
    std::uint64_t parameter_bytes = 0;                        // of the parameter plane, padded to pages
    std::uint32_t state_planes = 0;                           // 0 when frozen
    std::array<std::uint64_t, kMaximumPlanes> plane_bytes{};  // of each state plane, without padding
    std::uint64_t offset = 0;                                 // in its file of the stripe

    // Header page and state planes, each padded to pages: one contiguous run on disk and in memory.
    [[nodiscard]] std::uint64_t plane_offset(std::uint32_t plane) const {
        std::uint64_t offset_in_states = kPage;
        for (std::uint32_t i = 0; i < plane; ++i) offset_in_states += round_up(plane_bytes[i], kPage);
        return offset_in_states;
    }
    [[nodiscard]] std::uint64_t state_bytes() const { return plane_offset(state_planes); }
    [[nodiscard]] std::uint64_t record_bytes() const { return parameter_bytes + state_bytes(); }
};

class Layout {
  public:
    // Throws Error(invalid) for a shape without blocks, an empty block or a chunk size that is not a multiple of
    // kChunkStep.
    Layout(StoreShape shape, std::uint32_t stripes);

    [[nodiscard]] const StoreShape& shape() const { return shape_; }
    [[nodiscard]] std::uint32_t stripes() const { return static_cast<std::uint32_t>(version_bytes_.size()); }
    // Bytes of a stripe's files: one version of its trainable chunks, its frozen chunks, and all of them together.
    [[nodiscard]] std::uint64_t version_bytes(std::uint32_t stripe) const { return version_bytes_[stripe]; }
    [[nodiscard]] std::uint64_t frozen_bytes(std::uint32_t stripe) const { return frozen_bytes_[stripe]; }
    [[nodiscard]] std::uint64_t file_bytes(std::uint32_t stripe) const {
        return kVersions * version_bytes_[stripe] + frozen_bytes_[stripe];
    }
    [[nodiscard]] std::uint32_t block_count() const { return static_cast<std::uint32_t>(shape_.blocks.size()); }
    [[nodiscard]] std::span<const ChunkPlace> chunks() const { return chunks_; }
    [[nodiscard]] std::span<const ChunkPlace> chunks_of(std::uint32_t block) const;
    [[nodiscard]] std::uint32_t first_chunk(std::uint32_t block) const { return first_chunk_[block]; }
    [[nodiscard]] kernels::Dtype dtype(std::uint32_t block) const { return shape_.blocks[block].dtype; }
    [[nodiscard]] std::uint64_t parameter_size(std::uint32_t block) const { return kernels::size_of(dtype(block)); }
    // True if losses are scaled in training: some block is float16, trainable or not.
    [[nodiscard]] bool scales_loss() const { return scales_loss_; }
    // Bytes of a block's parameters in memory: its chunks' planes one after the other, the last padded to a page.
    [[nodiscard]] std::uint64_t window_bytes(std::uint32_t block) const;
    // Codes of a trainable chunk's state planes: the optimizer's, and before them the master where the parameters are
    // not float32 themselves. Beside bfloat16 it is a remainder; float16 has too few exponents to be half of a float32.
    [[nodiscard]] std::span<const kernels::StateCode> plane_codes(std::uint32_t block) const {
        return plane_codes_[static_cast<std::size_t>(shape_.blocks[block].master())];
    }
    // True if an update needs nothing of the parameters on disk: the master is in the states, whole.
    [[nodiscard]] bool states_have_master(std::uint32_t block) const {
        return shape_.blocks[block].master() == Master::whole;
    }

  private:
    StoreShape shape_;
    std::array<std::vector<kernels::StateCode>, kMasters> plane_codes_;  // by Master
    bool scales_loss_ = false;
    std::vector<ChunkPlace> chunks_;
    std::vector<std::uint32_t> first_chunk_;    // block_count + 1 entries
    std::vector<std::uint64_t> version_bytes_;  // by stripe, as frozen_bytes_
    std::vector<std::uint64_t> frozen_bytes_;
};

}  // namespace luwu::store
