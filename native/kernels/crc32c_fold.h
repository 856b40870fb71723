// CRC32C by folding: carry-less multiplications of 64 bytes at a time, where the processor has them. Internal to the
// kernels. Method: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/crc32c_instruction.h"
#include "kernels/processor.h"

#define LUWU_FOLD_TARGET [[gnu::target("avx512f,vpclmulqdq,pclmul,sse4.2,crc32")]]

namespace luwu::kernels {

inline bool crc32c_folding_exists() { return processor().vpclmulqdq && crc32c_instruction_exists(); }

/// x to the power of `exponent` modulo the polynomial; bit 31 is x^0, as in a checksum's state.
constexpr std::uint32_t power_of_x(std::uint32_t exponent) {
    std::uint32_t power = 0x80000000U;
    for (; exponent > 0; --exponent) power = (power >> 1) ^ ((power & 1U) != 0 ? 0x82F63B78U : 0U);
    return power;
}

/// Moves 16 bytes `bytes` further down the data without changing the checksum: their first 8 are multiplied by
/// `first`, the last 8 by `last`, and both products added to the 16 bytes found there.
struct FoldConstants {
    explicit constexpr FoldConstants(std::uint32_t bytes)
        : first(power_of_x(8 * bytes + 31)), last(power_of_x(8 * bytes - 33)) {}
    long long first;
    long long last;
};

LUWU_FOLD_TARGET inline __m512i fold(__m512i value, __m512i constants, __m512i onto) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, constants, 0x00),
                                     _mm512_clmulepi64_epi128(value, constants, 0x11), onto, 0x96);  // x ^ y ^ z
}

LUWU_FOLD_TARGET inline __m128i fold(__m128i value, __m128i constants, __m128i onto) {
    return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(value, constants, 0x00),
                                             _mm_clmulepi64_si128(value, constants, 0x11)));
}

inline constexpr std::size_t kFoldBytes = 256;  // in four registers: one waits for its product while three work

/// Advances a state over `bytes`, a positive multiple of kFoldBytes.
LUWU_FOLD_TARGET inline std::uint32_t advance_by_folding(std::uint32_t state, const std::uint8_t* data,
                                                         std::size_t bytes) {
    constexpr FoldConstants kFar(kFoldBytes);
    constexpr FoldConstants kNear(64);
    constexpr FoldConstants kNext(16);
    const __m512i far =
        _mm512_set_epi64(kFar.last, kFar.first, kFar.last, kFar.first, kFar.last, kFar.first, kFar.last, kFar.first);
    const __m512i near = _mm512_set_epi64(kNear.last, kNear.first, kNear.last, kNear.first, kNear.last, kNear.first,
                                          kNear.last, kNear.first);
    const __m128i next = _mm_set_epi64x(kNext.last, kNext.first);

    const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
    __m512i a = _mm512_xor_si512(start, _mm512_loadu_si512(data));
    __m512i b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128);
    __m512i d = _mm512_loadu_si512(data + 192);
    for (const std::uint8_t* next_data = data + kFoldBytes; next_data < data + bytes; next_data += kFoldBytes) {
        a = fold(a, far, _mm512_loadu_si512(next_data));
        b = fold(b, far, _mm512_loadu_si512(next_data + 64));
        c = fold(c, far, _mm512_loadu_si512(next_data + 128));
        d = fold(d, far, _mm512_loadu_si512(next_data + 192));
    }
    d = fold(fold(fold(a, near, b), near, c), near, d);

    alignas(64) __m128i lanes[4];
    _mm512_store_si512(lanes, d);
    const __m128i rest = fold(fold(fold(lanes[0], next, lanes[1]), next, lanes[2]), next, lanes[3]);
    state = crc32c_of_8(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(rest)));
    return crc32c_of_8(state, static_cast<std::uint64_t>(_mm_extract_epi64(rest, 1)));
}

}  // namespace luwu::kernels

#endif
