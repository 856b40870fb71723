#include "store/reader.h"

#include <cstring>

#include "kernels/crc32c.h"
#include "store/aligned_buffer.h"

namespace luwu::store {

namespace {

void append(BlockContents& contents, const ChunkStore& store, const ChunkPlace& place, std::uint64_t count) {
    const std::uint64_t size = store.layout().parameter_size();
    const AlignedBuffer record(place.record_bytes());
    IoRequest request = store.read_parameters(place, count, record.data(), record.data() + place.parameter_bytes);
    transfer_now(request);
    if (request.error != 0) throw store.failed(request, place);
    std::byte* states = record.data() + place.parameter_bytes;
    request = store.read_states(place, count, states);
    transfer_now(request);
    if (request.error != 0) throw store.failed(request, place);

    ChunkHeader header;
    std::memcpy(&header, states, sizeof header);
    store.check_header(header, place, count);
    if (kernels::crc32c(0, record.data(), place.elements * size) != header.parameter_crc) {
        throw store.damaged(place, count, 0);
    }
    std::memcpy(contents.parameters.data() + place.first_element * size, record.data(), place.elements * size);
    for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
        const std::byte* data = states + kPage + plane * place.state_plane_bytes;
        if (kernels::crc32c(0, data, place.elements * sizeof(float)) != header.state_crc[plane]) {
            throw store.damaged(place, count, plane + 1);
        }
        std::memcpy(contents.states[plane].data() + place.first_element, data, place.elements * sizeof(float));
    }
}

}  // namespace

BlockContents read_block(const ChunkStore& store, std::uint32_t block) {
    const Layout& layout = store.layout();
    const BlockShape& shape = layout.shape().blocks[block];
    BlockContents contents;
    contents.parameters.resize(shape.elements * layout.parameter_size());
    if (shape.trainable) contents.states.assign(layout.state_planes(), std::vector<float>(shape.elements));
    for (const ChunkPlace& place : layout.chunks_of(block)) {
        append(contents, store, place, store.committed().counts[block]);
    }
    return contents;
}

}  // namespace luwu::store
