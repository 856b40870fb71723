// The processor's CRC32C instruction, where there is one. Internal to the kernels.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define LUWU_CRC32C_TARGET [[gnu::target("sse4.2,crc32")]]  // clang has the instruction as a feature of its own
#elif defined(__aarch64__)
#include <arm_acle.h>
#define LUWU_CRC32C_TARGET [[gnu::target("+crc")]]
#endif

#include "kernels/processor.h"

namespace luwu::kernels {

inline bool crc32c_instruction_exists() { return processor().crc32c; }

#if defined(__x86_64__)

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_8(std::uint32_t state, std::uint64_t word) {
    return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
}

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_1(std::uint32_t state, std::uint8_t byte) {
    return _mm_crc32_u8(state, byte);
}

#elif defined(__aarch64__)

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_8(std::uint32_t state, std::uint64_t word) {
    return __crc32cd(state, word);
}

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_1(std::uint32_t state, std::uint8_t byte) {
    return __crc32cb(state, byte);
}

#endif

}  // namespace luwu::kernels
