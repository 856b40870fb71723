#include "store/records.h"

#include <algorithm>
#include <cstring>

#include "kernels/crc32c.h"

namespace luwu::store {

namespace {

struct CommitHeader {
    std::array<char, 8> magic{'L', 'U', 'W', 'U', 'C', 'M', 'I', 'T'};
    std::uint32_t format = kFormatVersion;
    std::uint32_t blocks = 0;
    std::uint64_t sequence = 0;
    std::uint64_t step = 0;
    std::uint64_t attempts = 0;
    std::uint64_t rolled_back = 0;
    Uuid uuid{};
    std::uint32_t version = 0;
    std::uint32_t reserved = 0;
};
static_assert(sizeof(CommitHeader) == 72);

// Between the counts and the checksum, in stores whose losses are scaled. All zeros: no step has been made.
struct CommitScale {
    double scale = 0;
    std::uint64_t good_steps = 0;
};
static_assert(sizeof(CommitScale) == 16);

template <typename Record>
std::uint32_t crc_of(const Record& record) {
    return kernels::crc32c(0, &record, offsetof(Record, crc));
}

std::uint64_t scale_offset(const Layout& layout) {
    return sizeof(CommitHeader) + std::uint64_t{layout.block_count()} * sizeof(std::uint64_t);
}

std::uint64_t commit_payload_bytes(const Layout& layout) {
    return scale_offset(layout) + (layout.scales_loss() ? sizeof(CommitScale) : 0);
}

}  // namespace

Error other_format(const std::string& path, std::uint64_t offset, std::uint32_t format) {
    const bool older = format < kFormatVersion;
    return {ErrorKind::format,
            path + " at offset " + std::to_string(offset) + " has store format " + std::to_string(format) +
                "; this LuWu reads format " + std::to_string(kFormatVersion) + ": " +
                (older ? "export it with the LuWu that wrote it (luwu export --dcp keeps optimizer states), and import "
                         "that into a new store"
                       : "use the newer LuWu that wrote it")};
}

void seal(FileHeader& header) { header.crc = crc_of(header); }
void seal(ChunkHeader& header) { header.crc = crc_of(header); }
bool valid(const FileHeader& header) { return header.magic == FileHeader{}.magic && header.crc == crc_of(header); }
bool valid(const ChunkHeader& header) { return header.magic == ChunkHeader{}.magic && header.crc == crc_of(header); }

std::uint64_t commit_slot_bytes(const Layout& layout) {
    return round_up(commit_payload_bytes(layout) + sizeof(std::uint32_t), kPage);
}

void encode_commit(const CommitRecord& record, const Layout& layout, const Uuid& uuid, std::span<std::byte> slot) {
    std::fill(slot.begin(), slot.end(), std::byte{0});
    CommitHeader header;
    header.blocks = static_cast<std::uint32_t>(record.counts.size());
    header.sequence = record.sequence;
    header.step = record.step;
    header.attempts = record.attempts;
    header.rolled_back = record.rolled_back;
    header.uuid = uuid;
    header.version = record.version;
    std::memcpy(slot.data(), &header, sizeof header);
    std::memcpy(slot.data() + sizeof header, record.counts.data(), record.counts.size() * sizeof(std::uint64_t));
    if (layout.scales_loss() && record.loss_scale) {
        const CommitScale scale{record.loss_scale->scale, record.loss_scale->good_steps};
        std::memcpy(slot.data() + scale_offset(layout), &scale, sizeof scale);
    }
    const std::uint64_t payload = commit_payload_bytes(layout);
    const std::uint32_t crc = kernels::crc32c(0, slot.data(), payload);
    std::memcpy(slot.data() + payload, &crc, sizeof crc);
}

DecodedCommit decode_commit(std::span<const std::byte> slot, const Uuid& uuid, const Layout& layout) {
    const std::uint32_t blocks = layout.block_count();
    DecodedCommit decoded;
    if (std::all_of(slot.begin(), slot.end(), [](std::byte b) { return b == std::byte{0}; })) return decoded;
    decoded.state = DecodedCommit::State::damaged;
    CommitHeader header;
    std::memcpy(&header, slot.data(), sizeof header);
    if (header.magic != CommitHeader{}.magic) return decoded;
    decoded.format = header.format;
    if (header.format != kFormatVersion) {
        decoded.state = DecodedCommit::State::other_format;
        return decoded;
    }
    if (header.blocks != blocks) return decoded;
    const std::uint64_t payload = commit_payload_bytes(layout);
    std::uint32_t crc = 0;
    std::memcpy(&crc, slot.data() + payload, sizeof crc);
    if (crc != kernels::crc32c(0, slot.data(), payload)) return decoded;
    if (header.version >= kVersions) return decoded;
    decoded.state = header.uuid == uuid ? DecodedCommit::State::valid : DecodedCommit::State::other_store;
    decoded.record = {header.sequence, header.step, header.attempts, header.rolled_back, header.version, {}, {}};
    decoded.record.counts.resize(blocks);
    std::memcpy(decoded.record.counts.data(), slot.data() + sizeof header, blocks * sizeof(std::uint64_t));
    if (layout.scales_loss()) {
        CommitScale scale;
        std::memcpy(&scale, slot.data() + scale_offset(layout), sizeof scale);
        if (scale.scale > 0) decoded.record.loss_scale = {scale.scale, scale.good_steps};
    }
    return decoded;
}

}  // namespace luwu::store
