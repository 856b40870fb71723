// Reads a whole block of a committed store, every checksum compared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/reader.h"

namespace luwu::test {

using BlockContents = store::ChunkContents;

inline BlockContents read_block(const store::ChunkStore& store, std::uint32_t block) {
    const store::Layout& layout = store.layout();
    const store::BlockShape& shape = layout.shape().blocks[block];
    BlockContents contents;
    contents.parameters.reserve(shape.bytes());
    if (shape.trainable) contents.states.resize(layout.plane_codes(block).size());
    for (const store::ChunkPlace& place : layout.chunks_of(block)) {
        const store::ChunkContents chunk = store::read_chunk(store, place, true);
        contents.parameters.insert(contents.parameters.end(), chunk.parameters.begin(), chunk.parameters.end());
        for (std::size_t plane = 0; plane < chunk.states.size(); ++plane) {
            contents.states[plane].insert(contents.states[plane].end(), chunk.states[plane].begin(),
                                          chunk.states[plane].end());
        }
    }
    return contents;
}

}  // namespace luwu::test
