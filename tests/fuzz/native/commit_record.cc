// A record of a commit, in stores of several shapes; and a whole file of records.
#include "kernels/crc32c.h"
#include "store/records.h"
#include "target.h"

namespace {

using namespace luwu::store;
using luwu::fuzz::require;

constexpr Uuid kUuid{1, 2, 3};
enum : std::uint8_t { kSealed = 1, kWholeFile = 2, kFormat2 = 4, kScaled = 8, kShapes = 16 };

// A block, or as many as fill more than a page with counts.
Layout layout_of(bool scaled, bool many) {
    StoreShape shape;
    shape.chunk_elements = kChunkStep;
    for (int block = 0; block < (many ? 600 : 2); ++block) shape.blocks.push_back({std::to_string(block), 100, true});
    if (scaled) shape.blocks[0].dtype = luwu::kernels::Dtype::float16;
    return {shape, 1};
}

const Layout& layout_for(std::uint8_t mode) {
    static const std::array<Layout, 4> all{layout_of(false, false), layout_of(true, false), layout_of(false, true),
                                           layout_of(true, true)};
    return all[((mode & kScaled) != 0 ? 1U : 0U) + ((mode & kShapes) != 0 ? 2U : 0U)];
}

// Offset of the checksum in a record of either format.
std::uint64_t payload_bytes(const Layout& layout, bool format_2) {
    return (format_2 ? 72 : 96) + std::uint64_t{layout.block_count()} * 8 + (layout.scales_loss() ? 16 : 0);
}

void check_record(std::span<const std::byte> slot, const Layout& layout) {
    const DecodedCommit decoded = decode_commit(slot, kUuid, layout);
    if (decoded.state != DecodedCommit::State::valid) return;
    const CommitRecord& record = decoded.record;
    require(record.version < kVersions, "a valid record names one of the versions");
    require(record.counts.size() == layout.block_count(), "a valid record has a count for each block");
    require(!record.loss_scale || layout.scales_loss(), "only a store that scales losses has a scale");
    std::vector<std::byte> again(commit_slot_bytes(layout));
    encode_commit(record, layout, kUuid, again);
    const DecodedCommit twice = decode_commit(again, kUuid, layout);
    require(twice.state == DecodedCommit::State::valid && twice.record == record, "a record survives another writing");
}

}  // namespace

LUWU_FUZZ_TARGET("commit_record") {
    luwu::fuzz::Input input(data);
    const auto mode = input.number();
    const Layout& layout = layout_for(mode);
    const bool format_2 = (mode & kFormat2) != 0;
    const std::uint64_t slot_bytes = commit_slot_bytes(layout, format_2 ? kOldestFormat : kFormatVersion);
    std::vector<std::byte> slot(((mode & kWholeFile) != 0 ? 2 : 1) * slot_bytes);
    const luwu::fuzz::Bytes given = input.bytes(slot.size());
    std::copy(given.begin(), given.end(), slot.begin());
    if ((mode & kSealed) != 0) {
        const std::uint64_t payload = payload_bytes(layout, format_2);
        const std::uint32_t crc = luwu::kernels::crc32c(0, slot.data(), payload);
        std::memcpy(slot.data() + payload, &crc, sizeof crc);
    }
    check_record(slot, layout);
    // A file that says that a store has no values lets a creation replace it: no valid record may say that it has some.
    if (!records_say_no_values(slot)) return;
    const DecodedCommit first = decode_commit(slot, kUuid, layout);
    require(first.state != DecodedCommit::State::valid || !first.record.has_values, "values are not given away");
}
