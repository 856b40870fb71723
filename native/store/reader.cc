#include "store/reader.h"

#include <cstring>

#include "kernels/crc32c.h"
#include "kernels/remainder.h"
#include "store/aligned_buffer.h"

namespace luwu::store {

namespace {

void read(const ChunkStore& store, const ChunkPlace& place, std::uint64_t count, IoRequest request) {
    transfer_now(request);
    if (request.error != 0) throw store.records().failed(request, place, count);
}

std::vector<float> checked_state(const ChunkStore& store, const ChunkPlace& place, std::uint64_t count,
                                 std::uint32_t plane, const std::byte* record) {
    const std::byte* states = record + place.parameter_bytes;
    const ChunkHeader header = load_chunk_header(states);
    const std::byte* data = states + place.plane_offset(plane);
    if (kernels::crc32c(0, data, place.plane_bytes[plane]) != header.state_crc[plane]) {
        throw store.records().damaged(place, count, plane + 1);
    }
    std::vector<float> values(place.elements);
    const kernels::StateCode code = store.layout().plane_codes(place.block)[plane];
    if (code == kernels::StateCode::float32) {
        std::memcpy(values.data(), data, place.elements * sizeof(float));
    } else if (code == kernels::StateCode::remainder) {
        kernels::join_master(reinterpret_cast<const std::uint16_t*>(record),
                             reinterpret_cast<const std::uint16_t*>(data), values.data(), place.elements);
    } else {
        kernels::decode(code, data, values.data(), place.elements);
    }
    return values;
}

}  // namespace

ChunkContents read_chunk(const ChunkStore& store, const ChunkPlace& place, bool with_states) {
    if (!store.initialised()) throw store.no_values();
    const std::uint64_t count = store.committed().counts[place.block];
    const std::uint64_t bytes = place.elements * store.layout().parameter_size(place.block);
    const AlignedBuffer record(place.record_bytes());
    std::byte* states = record.data() + place.parameter_bytes;
    read(store, place, count, store.records().read_parameters(place, count, record.data(), states));
    if (with_states && place.state_planes > 0)
        read(store, place, count, store.records().read_states(place, count, states));

    const ChunkHeader header = load_chunk_header(states);
    store.records().check_header(header, place, count);
    if (kernels::crc32c(0, record.data(), bytes) != header.parameter_crc)
        throw store.records().damaged(place, count, 0);
    ChunkContents contents;
    contents.parameters.assign(record.data(), record.data() + bytes);
    if (with_states) {
        for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
            contents.states.push_back(checked_state(store, place, count, plane, record.data()));
        }
    }
    return contents;
}

}  // namespace luwu::store
