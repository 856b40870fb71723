#include "standby/standing.h"

#include <cstring>
#include <string>

#include "kernels/crc32c.h"
#include "store/aligned_buffer.h"

namespace luwu::standby {

std::uint32_t digest_of(const store::ChunkStore& store) {
    const store::AlignedBuffer page(store::kPage);
    const store::ChunkRecords records = store.records();
    std::uint32_t digest = 0;
    for (const store::ChunkPlace& place : store.layout().chunks()) {
        const std::uint64_t count = store.committed().counts[place.block];
        store::IoRequest request = records.read_header(place, count, page.data());
        store::transfer_now(request);
        if (request.error != 0) throw records.failed(request, place, count);
        const store::ChunkHeader header = store::load_chunk_header(page.data());
        records.check_header(header, place, count);
        digest = kernels::crc32c(digest, &header.parameter_crc, sizeof header.parameter_crc);
        digest = kernels::crc32c(digest, header.state_crc.data(), place.state_planes * sizeof header.state_crc[0]);
    }
    return digest;
}

std::vector<std::byte> encode_standing(const store::ChunkStore& store) {
    if (!store.initialised()) return {};
    const std::uint64_t slot = store::commit_slot_bytes(store.layout());
    const std::uint32_t digest = digest_of(store);
    std::vector<std::byte> bytes(slot + sizeof digest);
    store::encode_commit(store.committed(), store.layout(), store.uuid(), {bytes.data(), slot});
    std::memcpy(bytes.data() + slot, &digest, sizeof digest);
    return bytes;
}

std::optional<Standing> decode_standing(std::span<const std::byte> bytes, const store::ChunkStore& store) {
    if (bytes.empty()) return std::nullopt;
    const std::uint64_t slot = store::commit_slot_bytes(store.layout());
    Standing standing;
    if (bytes.size() == slot + sizeof standing.digest) {
        auto decoded = store::decode_commit(bytes.first(slot), store.uuid(), store.layout());
        if (decoded.state == store::DecodedCommit::State::valid) {
            standing.record = std::move(decoded.record);
            std::memcpy(&standing.digest, bytes.data() + slot, sizeof standing.digest);
            return standing;
        }
    }
    throw Error(ErrorKind::invalid, "the standby's store is not a copy of " + store.folders()[0] +
                                        ": expected a commit record of the same model; give the standby an empty "
                                        "folder");
}

bool same_counts(const store::CommitRecord& one, const store::CommitRecord& other) {
    return one.step == other.step && one.attempts == other.attempts && one.rolled_back == other.rolled_back &&
           one.counts == other.counts;
}

}  // namespace luwu::standby
