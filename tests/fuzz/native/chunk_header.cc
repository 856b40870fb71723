// The header page of a chunk, of both formats.
#include "kernels/crc32c.h"
#include "store/records.h"
#include "target.h"

LUWU_FUZZ_TARGET("chunk_header") {
    using namespace luwu::store;
    using luwu::fuzz::require;
    enum : std::uint8_t { kSealed = 1, kSealed2 = 2 };
    constexpr std::size_t kFormat2Bytes = 76;
    luwu::fuzz::Input input(data);
    const auto mode = input.number();
    std::array<std::byte, kPage> page{};
    const luwu::fuzz::Bytes given = input.bytes(page.size());
    std::copy(given.begin(), given.end(), page.begin());
    const auto seal_at = [&page](std::size_t at) {
        const std::uint32_t crc = luwu::kernels::crc32c(0, page.data(), at);
        std::memcpy(&page[at], &crc, sizeof crc);
    };
    if ((mode & kSealed) != 0) seal_at(offsetof(ChunkHeader, crc));
    if ((mode & kSealed2) != 0) seal_at(kFormat2Bytes);
    const ChunkHeader header = load_chunk_header(page.data());
    if (!valid(header)) return;
    const bool format_2 = header.version == kOldestFormat;
    require(std::memcmp(&header, page.data(), format_2 ? offsetof(ChunkHeader, attempt) : sizeof header) == 0,
            "a valid header is what lies on the disk");
    require(!format_2 || (header.attempt == 0 && header.reserved == 0), "format 2 has no attempts");
    ChunkHeader again = header;
    seal(again);
    require(again.crc == header.crc, "sealing a valid header changes nothing");
}
