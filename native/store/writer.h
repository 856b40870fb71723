// Writes a store's values chunk by chunk, from outside of a training step: first values, and what an import brings.
#pragma once

#include <cstdint>
#include <span>

#include "store/chunk_store.h"

namespace luwu::store {

// Writes one chunk's record at an update count, in the calling thread. `values` are its parameters in fp32, of which a
// block of another dtype keeps a master. `moments` are the state planes after the master, one after the other, or empty
// for zeros. Committed by ChunkStore::commit. Throws Error: invalid for another number of moments, order where the
// store has values, io, no_space.
void write_chunk(ChunkStore& store, const ChunkPlace& place, std::uint64_t count, const float* values,
                 std::span<const float* const> moments = {});

}  // namespace luwu::store
