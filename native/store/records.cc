#include "store/records.h"

#include <algorithm>
#include <cstring>

#include "kernels/crc32c.h"

namespace luwu::store {

namespace {

struct CommitHeader {
    std::array<char, 8> magic{'L', 'U', 'W', 'U', 'C', 'M', 'I', 'T'};
    std::uint32_t version = kFormatVersion;
    std::uint32_t blocks = 0;
    std::uint64_t sequence = 0;
    std::uint64_t step = 0;
    std::uint64_t attempts = 0;
    std::uint64_t rolled_back = 0;
    Uuid uuid{};
};
static_assert(sizeof(CommitHeader) == 64);

template <typename Record>
std::uint32_t crc_of(const Record& record) {
    return kernels::crc32c(0, &record, offsetof(Record, crc));
}

std::uint64_t commit_payload_bytes(std::uint32_t blocks) {
    return sizeof(CommitHeader) + std::uint64_t{blocks} * sizeof(std::uint64_t);
}

}  // namespace

void seal(FileHeader& header) { header.crc = crc_of(header); }
void seal(ChunkHeader& header) { header.crc = crc_of(header); }
bool valid(const FileHeader& header) { return header.magic == FileHeader{}.magic && header.crc == crc_of(header); }
bool valid(const ChunkHeader& header) { return header.magic == ChunkHeader{}.magic && header.crc == crc_of(header); }

std::uint64_t commit_slot_bytes(std::uint32_t blocks) {
    return round_up(commit_payload_bytes(blocks) + sizeof(std::uint32_t), kPage);
}

void encode_commit(const CommitRecord& record, const Uuid& uuid, std::span<std::byte> slot) {
    std::fill(slot.begin(), slot.end(), std::byte{0});
    CommitHeader header;
    header.blocks = static_cast<std::uint32_t>(record.counts.size());
    header.sequence = record.sequence;
    header.step = record.step;
    header.attempts = record.attempts;
    header.rolled_back = record.rolled_back;
    header.uuid = uuid;
    std::memcpy(slot.data(), &header, sizeof header);
    std::memcpy(slot.data() + sizeof header, record.counts.data(), record.counts.size() * sizeof(std::uint64_t));
    const std::uint64_t payload = commit_payload_bytes(header.blocks);
    const std::uint32_t crc = kernels::crc32c(0, slot.data(), payload);
    std::memcpy(slot.data() + payload, &crc, sizeof crc);
}

DecodedCommit decode_commit(std::span<const std::byte> slot, const Uuid& uuid, std::uint32_t blocks) {
    DecodedCommit decoded;
    if (std::all_of(slot.begin(), slot.end(), [](std::byte b) { return b == std::byte{0}; })) return decoded;
    decoded.state = DecodedCommit::State::damaged;
    CommitHeader header;
    std::memcpy(&header, slot.data(), sizeof header);
    if (header.magic != CommitHeader{}.magic) return decoded;
    decoded.version = header.version;
    if (header.version > kFormatVersion) {
        decoded.state = DecodedCommit::State::newer_format;
        return decoded;
    }
    if (header.blocks != blocks) return decoded;
    const std::uint64_t payload = commit_payload_bytes(blocks);
    std::uint32_t crc = 0;
    std::memcpy(&crc, slot.data() + payload, sizeof crc);
    if (crc != kernels::crc32c(0, slot.data(), payload)) return decoded;
    decoded.state = header.uuid == uuid ? DecodedCommit::State::valid : DecodedCommit::State::other_store;
    decoded.record = {header.sequence, header.step, header.attempts, header.rolled_back, {}};
    decoded.record.counts.resize(blocks);
    std::memcpy(decoded.record.counts.data(), slot.data() + sizeof header, blocks * sizeof(std::uint64_t));
    return decoded;
}

}  // namespace luwu::store
