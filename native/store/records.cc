#include "store/records.h"

#include <algorithm>
#include <cstring>

#include "kernels/crc32c.h"

namespace luwu::store {

namespace {

// The beginning of a record; format 2 has all of it.
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
    std::uint32_t has_values = 0;
};
static_assert(sizeof(CommitHeader) == 72);

// Follows CommitHeader from format 3 on.
struct CommitAttempts {
    std::uint64_t opening = 0;
    std::uint64_t version_attempt = 0;
    std::uint64_t frozen_attempt = 0;
};
static_assert(sizeof(CommitAttempts) == 24);

// Between the counts and the checksum, in stores whose losses are scaled. All zeros: no step has been made.
struct CommitScale {
    double scale = 0;
    std::uint64_t good_steps = 0;
};
static_assert(sizeof(CommitScale) == 16);

constexpr std::size_t kFormat2HeaderBytes = 76;  // the bytes that format 2's checksum covers; the checksum follows them

template <typename Record>
std::uint32_t crc_of(const Record& record) {
    return kernels::crc32c(0, &record, offsetof(Record, crc));
}

std::uint64_t counts_offset(std::uint32_t format) {
    return sizeof(CommitHeader) + (format == kOldestFormat ? 0 : sizeof(CommitAttempts));
}

std::uint64_t scale_offset(const Layout& layout, std::uint32_t format) {
    return counts_offset(format) + std::uint64_t{layout.block_count()} * sizeof(std::uint64_t);
}

std::uint64_t commit_payload_bytes(const Layout& layout, std::uint32_t format) {
    return scale_offset(layout, format) + (layout.scales_loss() ? sizeof(CommitScale) : 0);
}

}  // namespace

Error other_format(const std::string& path, std::uint64_t offset, std::uint32_t format) {
    const bool older = format < kOldestFormat;
    return {ErrorKind::format,
            path + " at offset " + std::to_string(offset) + " has store format " + std::to_string(format) +
                "; this LuWu reads formats " + std::to_string(kOldestFormat) + " to " + std::to_string(kFormatVersion) +
                ": " +
                (older ? "export it with the LuWu that wrote it (luwu export --dcp keeps optimizer states), and import "
                         "that into a new store"
                       : "use the newer LuWu that wrote it")};
}

void seal(FileHeader& header) { header.crc = crc_of(header); }
void seal(ChunkHeader& header) { header.crc = crc_of(header); }
bool valid(const FileHeader& header) { return header.magic == FileHeader{}.magic && header.crc == crc_of(header); }
bool valid(const ChunkHeader& header) { return header.magic == ChunkHeader{}.magic && header.crc == crc_of(header); }

ChunkHeader load_chunk_header(const void* page) {
    ChunkHeader header;
    std::memcpy(&header, page, sizeof header);
    if (header.magic != ChunkHeader{}.magic || header.version != kOldestFormat) return header;
    std::uint32_t crc = 0;
    std::memcpy(&crc, static_cast<const std::byte*>(page) + kFormat2HeaderBytes, sizeof crc);
    header.attempt = 0;
    header.reserved = 0;
    seal(header);
    if (crc != kernels::crc32c(0, page, kFormat2HeaderBytes)) header.crc = ~header.crc;
    return header;
}

std::uint64_t commit_slot_bytes(const Layout& layout, std::uint32_t format) {
    return round_up(commit_payload_bytes(layout, format) + sizeof(std::uint32_t), kPage);
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
    header.has_values = record.has_values ? 1 : 0;
    const CommitAttempts attempts{record.opening, record.version_attempt, record.frozen_attempt};
    std::memcpy(slot.data(), &header, sizeof header);
    std::memcpy(slot.data() + sizeof header, &attempts, sizeof attempts);
    std::memcpy(slot.data() + counts_offset(kFormatVersion), record.counts.data(),
                record.counts.size() * sizeof(std::uint64_t));
    if (layout.scales_loss() && record.loss_scale) {
        const CommitScale scale{record.loss_scale->scale, record.loss_scale->good_steps};
        std::memcpy(slot.data() + scale_offset(layout, kFormatVersion), &scale, sizeof scale);
    }
    const std::uint64_t payload = commit_payload_bytes(layout, kFormatVersion);
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
    if (!is_read(header.format)) {
        decoded.state = DecodedCommit::State::other_format;
        return decoded;
    }
    const std::uint64_t payload = commit_payload_bytes(layout, header.format);
    if (header.blocks != blocks || slot.size() < payload + sizeof(std::uint32_t)) return decoded;
    std::uint32_t crc = 0;
    std::memcpy(&crc, slot.data() + payload, sizeof crc);
    if (crc != kernels::crc32c(0, slot.data(), payload)) return decoded;
    if (header.version >= kVersions) return decoded;
    decoded.state = header.uuid == uuid ? DecodedCommit::State::valid : DecodedCommit::State::other_store;
    CommitRecord& record = decoded.record;
    record = {header.sequence, header.step, header.attempts, header.rolled_back, header.version, {}, {}};
    record.has_values = header.format == kOldestFormat || header.has_values != 0;
    if (header.format != kOldestFormat) {
        CommitAttempts attempts;
        std::memcpy(&attempts, slot.data() + sizeof header, sizeof attempts);
        record.opening = attempts.opening;
        record.version_attempt = attempts.version_attempt;
        record.frozen_attempt = attempts.frozen_attempt;
    }
    record.counts.resize(blocks);
    std::memcpy(record.counts.data(), slot.data() + counts_offset(header.format), blocks * sizeof(std::uint64_t));
    if (layout.scales_loss()) {
        CommitScale scale;
        std::memcpy(&scale, slot.data() + scale_offset(layout, header.format), sizeof scale);
        if (scale.scale > 0) record.loss_scale = {scale.scale, scale.good_steps};
    }
    return decoded;
}

bool records_say_no_values(std::span<const std::byte> file) {
    bool valid = false;
    for (std::uint64_t offset = 0; offset + kPage <= file.size(); offset += kPage) {
        CommitHeader header;
        std::memcpy(&header, file.data() + offset, sizeof header);
        if (header.magic != CommitHeader{}.magic) continue;
        if (header.format != kFormatVersion || header.has_values != 0) return false;
        if (offset > 0) continue;
        // The store's layout is not known here, so both places of the checksum are tried: without a scale and with one.
        const std::uint64_t counts_end = counts_offset(kFormatVersion) + header.blocks * sizeof(std::uint64_t);
        for (const std::uint64_t payload : {counts_end, counts_end + sizeof(CommitScale)}) {
            std::uint32_t crc = 0;
            if (payload + sizeof crc > file.size()) break;
            std::memcpy(&crc, file.data() + payload, sizeof crc);
            valid = valid || crc == kernels::crc32c(0, file.data(), payload);
        }
    }
    return valid;
}

}  // namespace luwu::store
