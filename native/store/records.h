// The small records of the store, byte for byte as docs/store-format.md specifies them (little-endian).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/error.h"
#include "store/layout.h"

namespace luwu::store {

inline constexpr std::uint32_t kFormatVersion = 3;  // the format that is written
inline constexpr std::uint32_t kOldestFormat = 2;   // the oldest format that is read
[[nodiscard]] constexpr bool is_read(std::uint32_t format) {
    return format >= kOldestFormat && format <= kFormatVersion;
}
using Uuid = std::array<std::uint8_t, 16>;

// Page 0 of every file of chunks.
struct FileHeader {
    std::array<char, 8> magic{'L', 'U', 'W', 'U', 'D', 'A', 'T', 'A'};
    std::uint32_t version = kFormatVersion;
    std::uint32_t stripe = 0;
    std::uint32_t stripes = 0;
    std::uint32_t parameter_bytes = 0;  // per element: 2 or 4; 0 where blocks differ
    std::uint64_t chunk_elements = 0;
    std::uint64_t file_bytes = 0;
    Uuid uuid{};
    std::uint32_t optimizer = 0;  // its number: 0 is AdamW
    std::uint32_t frozen = 0;     // 1: the stripe's frozen chunks, 0: a version of the others
    std::uint32_t reserved = 0;
    std::uint32_t crc = 0;  // CRC32C of everything before
};
static_assert(sizeof(FileHeader) == 72);

// The page between a chunk's parameters and its states. Format 2 has no attempt; its crc stands in that place.
struct ChunkHeader {
    std::array<char, 8> magic{'L', 'U', 'W', 'U', 'C', 'H', 'N', 'K'};
    std::uint32_t version = kFormatVersion;
    std::uint32_t block = 0;
    std::uint32_t chunk = 0;
    std::uint32_t planes = 0;  // state planes that follow
    std::uint64_t elements = 0;
    std::uint64_t count = 0;  // updates this chunk has seen
    Uuid uuid{};
    std::uint32_t parameter_crc = 0;  // of the elements, without padding
    std::array<std::uint32_t, kMaximumPlanes> state_crc{};
    std::uint64_t attempt = 0;  // the attempt that wrote the chunk; 0: format 2
    std::uint32_t reserved = 0;
    std::uint32_t crc = 0;
};
static_assert(sizeof(ChunkHeader) == 88);

// An attempt to write a version's chunks: the number of the store's opening for writing, and a number within it.
[[nodiscard]] constexpr std::uint64_t attempt_of(std::uint64_t opening, std::uint64_t number) {
    return (opening << 32U) + number;
}

// The loss scale that a step is made with, and how many steps in a row before it were committed at the same one. What
// the step after it is made with follows from how it ends; the workers know how.
struct LossScale {
    double scale = 1;
    std::uint64_t good_steps = 0;

    bool operator==(const LossScale&) const = default;
};

// The committed state, written once a step, alternately to one of two slots. The valid record with the highest sequence
// counts; among those with the same sequence, the one with the highest opening.
struct CommitRecord {
    std::uint64_t sequence = 0;
    std::uint64_t step = 0;      // committed optimizer steps
    std::uint64_t attempts = 0;  // steps begun and ended, rolled-back ones included
    std::uint64_t rolled_back = 0;
    std::uint32_t version = 0;            // whose files hold the trainable chunks of this commit
    std::vector<std::uint64_t> counts;    // updates per block
    std::optional<LossScale> loss_scale;  // of the committed step, where the store has it: in Layout::scales_loss()
    bool has_values = false;              // false from creation until the first commit
    std::uint64_t opening = 0;            // number of the last opening for writing, which grows with each
    std::uint64_t version_attempt = 0;    // the attempt that wrote the version's chunks; 0: format 2 does not tell
    std::uint64_t frozen_attempt = 0;     // the attempt that wrote the frozen chunks; before there are values, all

    bool operator==(const CommitRecord&) const = default;
};

// The error for a file or a record whose format is not read.
[[nodiscard]] Error other_format(const std::string& path, std::uint64_t offset, std::uint32_t format);

// Seals: sets the crc. Valid: magic and crc are right.
void seal(FileHeader& header);
void seal(ChunkHeader& header);
[[nodiscard]] bool valid(const FileHeader& header);
[[nodiscard]] bool valid(const ChunkHeader& header);
// The header in the page of a chunk; one of format 2 is sealed anew if it was valid.
[[nodiscard]] ChunkHeader load_chunk_header(const void* page);

// The bytes that a record takes, in whole pages.
[[nodiscard]] std::uint64_t commit_slot_bytes(const Layout& layout, std::uint32_t format = kFormatVersion);
// Fills one slot (commit_slot_bytes long); the record has a count for each block of the layout.
void encode_commit(const CommitRecord& record, const Layout& layout, const Uuid& uuid, std::span<std::byte> slot);

struct DecodedCommit {
    enum class State : std::uint8_t { empty, valid, damaged, other_format, other_store } state = State::empty;
    std::uint32_t format = 0;
    CommitRecord record;
};
// Decodes a record of any format that is read; the slot is at least as long as that format's.
[[nodiscard]] DecodedCommit decode_commit(std::span<const std::byte> slot, const Uuid& uuid, const Layout& layout);

// True if a whole file of records, of any store of this format, begins with a valid record and none of them has values.
[[nodiscard]] bool records_say_no_values(std::span<const std::byte> file);

}  // namespace luwu::store
