// Step 5 for one chunk: checksums of what was read, the update, checksums of what will be written, in one pass over
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/optimizer.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

// Elements up to `end` (from the end of the segment before) belong to one parameter group.
struct Segment {
    std::uint64_t end = 0;
    std::uint32_t group = 0;
};

struct ChunkUpdate {
    const store::ChunkPlace* place = nullptr;
    const kernels::Optimizer* optimizer = nullptr;
    std::span<const kernels::StateCode> codes;                // of the state planes
    std::uint64_t count = 0;                                  // of the chunk's updates, this one among them
    kernels::Dtype dtype = kernels::Dtype::float32;           // of the parameters
    kernels::Dtype gradient_dtype = kernels::Dtype::float32;  // of all gradients
    std::byte* parameters = nullptr;                          // of this chunk, in the window
    std::byte* states = nullptr;                              // header page, then the planes
    std::vector<const std::byte*> gradients;                  // one per worker, at this chunk
    std::uint32_t trims = 0;  // of several gradients, values that are left out at each end; then the rest is averaged
    float scale = 1.0F;       // of their sum, or of that average: 1 / workers, or 1
    std::span<const Segment> segments;  // of the block
    std::span<const kernels::Step> groups;
    bool verify = false;  // the states came from the disk
    bool seals = true;    // the checksums of what will be written are wanted
};

struct ChunkUpdateResult {
    bool finite = true;
    std::uint32_t damaged_plane = 0;  // 0: none; else the first state plane (from 1) whose checksum is wrong
    std::uint32_t parameter_crc = 0;  // of the updated contents
    std::array<std::uint32_t, store::kMaximumPlanes> state_crc{};
};

// Keeps the chunk's gradients in memory at `kept`, and returns the sum of their squares: kernels::keep_gradients().
[[nodiscard]] double keep_chunk(const ChunkUpdate& update, void* kept);
[[nodiscard]] ChunkUpdateResult update_chunk(const ChunkUpdate& update);
// The checksums of what memory holds of a chunk, which no update follows.
[[nodiscard]] ChunkUpdateResult checksums_of(const ChunkUpdate& record);

}  // namespace luwu::pipeline
