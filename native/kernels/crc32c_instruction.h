// The processor's CRC32C instruction, where there is one. Internal to the kernels.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define LUWU_CRC32C_TARGET [[gnu::target("sse4.2,crc32")]]  // clang has the instruction as a feature of its own
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define LUWU_CRC32C_TARGET [[gnu::target("+crc")]]
#endif

namespace luwu::kernels {

#if defined(__x86_64__)

inline bool crc32c_instruction_exists() { return __builtin_cpu_supports("sse4.2") != 0; }

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_8(std::uint32_t state, std::uint64_t word) {
    return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
}

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_1(std::uint32_t state, std::uint8_t byte) {
    return _mm_crc32_u8(state, byte);
}

#elif defined(__aarch64__)

inline bool crc32c_instruction_exists() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_8(std::uint32_t state, std::uint64_t word) {
    return __builtin_aarch64_crc32cx(state, word);
}

LUWU_CRC32C_TARGET inline std::uint32_t crc32c_of_1(std::uint32_t state, std::uint8_t byte) {
    return __builtin_aarch64_crc32cb(state, byte);
}

#endif

}  // namespace luwu::kernels
