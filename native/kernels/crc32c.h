// CRC32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of RFC 3720: "123456789" gives 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

/// Extends `crc`, the checksum of what came before (0 at the start), over `bytes` of data.
[[nodiscard]] std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

/// Extends crcs[k] over the `bytes` at data[k], for every k below `streams`. Where that is faster, up to four streams
/// are advanced in one loop, so that one stream's instruction latency is filled with the work of the others.
void crc32c_parallel(std::uint32_t* crcs, const void* const* data, std::size_t streams, std::size_t bytes);

}  // namespace luwu::kernels
