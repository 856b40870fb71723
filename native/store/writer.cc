#include "store/writer.h"

#include <cstring>

#include "kernels/convert.h"
#include "kernels/crc32c.h"
#include "kernels/remainder.h"
#include "store/aligned_buffer.h"
#include "store/error.h"

namespace luwu::store {

void write_chunk(ChunkStore& store, const ChunkPlace& place, std::uint64_t count, const float* values,
                 std::span<const float* const> moments) {
    const Layout& layout = store.layout();
    const kernels::Dtype dtype = layout.dtype(place.block);
    const bool low = dtype != kernels::Dtype::float32;
    const std::uint32_t masters = low && place.trainable ? 1 : 0;
    if (!moments.empty() && moments.size() != place.state_planes - masters) {
        throw Error(ErrorKind::invalid, "block '" + layout.shape().blocks[place.block].name + "' keeps " +
                                            std::to_string(place.state_planes - masters) +
                                            " optimizer states of each parameter, found " +
                                            std::to_string(moments.size()));
    }
    const AlignedBuffer record(place.record_bytes());  // zeros
    std::byte* states = record.data() + place.parameter_bytes;
    auto* const copy = reinterpret_cast<std::uint16_t*>(record.data());
    const auto plane_at = [&](std::uint32_t plane) { return states + place.plane_offset(plane); };
    if (!low) {
        std::memcpy(record.data(), values, place.elements * sizeof(float));
    } else if (masters > 0 && !layout.states_have_master(place.block)) {
        kernels::split_master(values, copy, reinterpret_cast<std::uint16_t*>(plane_at(0)), place.elements);
    } else {
        kernels::float_to_low(dtype, values, copy, place.elements);
        if (masters > 0) std::memcpy(plane_at(0), values, place.elements * sizeof(float));
    }
    for (std::uint32_t i = 0; i < moments.size(); ++i) {
        const kernels::StateCode code = layout.plane_codes(place.block)[masters + i];
        if (code == kernels::StateCode::float32) {
            std::memcpy(plane_at(masters + i), moments[i], place.elements * sizeof(float));
        } else {
            kernels::encode(code, moments[i], plane_at(masters + i), place.elements, count);
        }
    }

    store.prepare_to_fill(place, count);
    ChunkHeader header = store.records().make_header(place, count);
    header.parameter_crc = kernels::crc32c(0, record.data(), place.elements * layout.parameter_size(place.block));
    for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
        header.state_crc[plane] = kernels::crc32c(0, plane_at(plane), place.plane_bytes[plane]);
    }
    seal(header);
    std::memcpy(states, &header, sizeof header);
    IoRequest request = store.records().write_record(place, count, record.data(), states);
    transfer_now(request);
    if (request.error != 0) throw store.records().failed(request, place, count);
}

}  // namespace luwu::store
