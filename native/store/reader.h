// Reads whole blocks of a committed store, every checksum compared: for export, verification and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "store/chunk_store.h"

namespace luwu::store {

struct BlockContents {
    std::vector<std::byte> parameters;       // in the store's parameter dtype
    std::vector<std::vector<float>> states;  // [master,] m, v; empty for a frozen block
};

// Throws Error(corrupt) naming file and offset, Error(io).
[[nodiscard]] BlockContents read_block(const ChunkStore& store, std::uint32_t block);

}  // namespace luwu::store
