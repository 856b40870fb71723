// Reads the committed values of a store, every checksum compared: for export, verification and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "store/chunk_store.h"

namespace luwu::store {

struct ChunkContents {
    std::vector<std::byte> parameters;       // in the block's dtype
    std::vector<std::vector<float>> states;  // [master,] and the optimizer's; none for a frozen block
};

// Without states, only parameters and header are read. Throws Error(corrupt) naming file and offset, Error(io). Any
// number of threads may call it.
[[nodiscard]] ChunkContents read_chunk(const ChunkStore& store, const ChunkPlace& place, bool with_states);

}  // namespace luwu::store
