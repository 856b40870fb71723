#include "store/chunk_records.h"

#include <algorithm>
#include <string>

#include "store/aligned_buffer.h"

namespace luwu::store {

const File& ChunkRecords::file_of(const ChunkPlace& place, std::uint64_t count) const {
    const StripeFiles& stripe = (*stripes_)[place.stripe];
    return place.trainable ? stripe.version(versions_->version_of(place, count)) : stripe.frozen();
}

IoRequest ChunkRecords::read_parameters(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                        void* header) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset;
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(header, kPage);
    return request;
}

IoRequest ChunkRecords::read_header(const ChunkPlace& place, std::uint64_t count, void* header) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset + place.parameter_bytes;
    request.add_part(header, kPage);
    return request;
}

IoRequest ChunkRecords::read_states(const ChunkPlace& place, std::uint64_t count, void* states) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset + place.parameter_bytes;
    request.add_part(states, place.state_bytes());
    return request;
}

IoRequest ChunkRecords::read_record(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                    void* states) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset;
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(states, place.state_bytes());
    return request;
}

IoRequest ChunkRecords::write_record(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                     void* states) const {
    IoRequest request = read_record(place, count, parameters, states);
    request.operation = IoRequest::Operation::write;
    return request;
}

ChunkHeader ChunkRecords::make_header(const ChunkPlace& place, std::uint64_t count) const {
    ChunkHeader header;
    header.block = place.block;
    header.chunk = place.chunk;
    header.planes = place.state_planes;
    header.elements = place.elements;
    header.count = count;
    header.uuid = *uuid_;
    header.attempt = versions_->attempt_of(place, count);
    return header;
}

void ChunkRecords::check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const {
    const std::string where =
        file_of(place, count).path() + " at offset " + std::to_string(place.offset + place.parameter_bytes) +
        " (block '" + layout_->shape().blocks[place.block].name + "', chunk " + std::to_string(place.chunk) + ")";
    if (header.magic == ChunkHeader{}.magic && !is_read(header.version)) {
        throw other_format(file_of(place, count).path(), place.offset + place.parameter_bytes, header.version);
    }
    if (!valid(header)) throw Error(ErrorKind::corrupt, where + ": the chunk header's checksum is wrong");
    if (header.uuid != *uuid_ || header.block != place.block || header.chunk != place.chunk ||
        header.elements != place.elements || header.count != count) {
        throw Error(ErrorKind::corrupt, where + ": expected update count " + std::to_string(count) + ", found block " +
                                            std::to_string(header.block) + ", chunk " + std::to_string(header.chunk) +
                                            ", update count " + std::to_string(header.count));
    }
    const std::uint64_t attempt = versions_->attempt_of(place, count);
    if (header.attempt == attempt) return;
    const auto in_words = [](std::uint64_t number) {
        return std::to_string(number >> 32U) + "." + std::to_string(number & 0xFFFFFFFFU);
    };
    throw Error(ErrorKind::corrupt, where + ": the chunk was written by another attempt at this step, " +
                                        in_words(header.attempt) + " where " + in_words(attempt) +
                                        " was expected; the disk lost a write that it had acknowledged");
}

Error ChunkRecords::damaged(const ChunkPlace& place, std::uint64_t count, std::uint32_t plane) const {
    std::uint64_t offset = place.offset;
    if (plane > 0) offset += place.parameter_bytes + place.plane_offset(plane - 1);
    return {ErrorKind::corrupt, file_of(place, count).path() + " at offset " + std::to_string(offset) + " (block '" +
                                    layout_->shape().blocks[place.block].name + "', chunk " +
                                    std::to_string(place.chunk) + ", plane " + std::to_string(plane) +
                                    "): the checksum is wrong; the disk returned other bytes than were written"};
}

Error ChunkRecords::failed(const IoRequest& request, const ChunkPlace& place, std::uint64_t count) const {
    const bool reading = request.operation == IoRequest::Operation::read;
    return system_error(reading ? "read" : "write",
                        file_of(place, count).path() + " at offset " + std::to_string(request.offset), request.error,
                        std::max(place.record_bytes(), hole_bytes(request.file)));
}

bool ChunkRecords::any_written() const {
    const AlignedBuffer page(kPage);
    return std::any_of(layout_->chunks().begin(), layout_->chunks().end(), [&](const ChunkPlace& place) {
        read_now(file_of(place, 0), page.data(), kPage, place.offset + place.parameter_bytes);
        return std::any_of(page.data(), page.data() + kPage, [](std::byte byte) { return byte != std::byte{0}; });
    });
}

}  // namespace luwu::store
