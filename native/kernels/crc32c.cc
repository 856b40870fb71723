#include "kernels/crc32c.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/crc32c_fold.h"
#include "kernels/crc32c_instruction.h"
#include "kernels/crc32c_tables.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

std::uint64_t load_word(const std::uint8_t* data) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    return word;
}

std::uint32_t advance_by_table(std::uint32_t state, const std::uint8_t* data, std::size_t bytes) {
    for (; bytes >= 8; bytes -= 8, data += 8) {
        const std::uint64_t word = load_word(data) ^ state;
        state = 0;
        for (std::size_t place = 0; place < 8; ++place) {
            state ^= kSlicingTables[7 - place][(word >> (8 * place)) & 0xFFU];
        }
    }
    for (; bytes > 0; --bytes, ++data) state = crc32c_table_step(state, *data);
    return state;
}

#if defined(LUWU_CRC32C_TARGET)

// The instruction takes 8 bytes a cycle but gives its result three cycles later: one dependent chain runs at a third
// of the speed. So three parts of a buffer are followed at once, and their states joined by table. On Zen 4 this
// raises 10 GB/s to 26 GB/s; no portable form of the instruction exists, hence the intrinsics.
constexpr std::size_t kPartBytes = 1024;
constexpr std::size_t kLineBytes = 64;
constexpr ByteTables<4> kPartShift = make_shift_tables(kPartBytes);

LUWU_CRC32C_TARGET std::uint32_t advance(std::uint32_t state, const std::uint8_t* data, std::size_t bytes) {
    for (; bytes >= 3 * kPartBytes; bytes -= 3 * kPartBytes, data += 3 * kPartBytes) {
        std::uint32_t second = 0;
        std::uint32_t third = 0;
        for (std::size_t line = 0; line < kPartBytes; line += kLineBytes) {
            for (std::size_t part = 0; part < 3; ++part) __builtin_prefetch(data + (3 + part) * kPartBytes + line);
            for (std::size_t i = line; i < line + kLineBytes; i += 8) {
                state = crc32c_of_8(state, load_word(data + i));
                second = crc32c_of_8(second, load_word(data + kPartBytes + i));
                third = crc32c_of_8(third, load_word(data + 2 * kPartBytes + i));
            }
        }
        state = shift(kPartShift, shift(kPartShift, state) ^ second) ^ third;
    }
    for (; bytes >= 8; bytes -= 8, data += 8) state = crc32c_of_8(state, load_word(data));
    for (; bytes > 0; --bytes, ++data) state = crc32c_of_1(state, *data);
    return state;
}

template <std::size_t streams>
LUWU_CRC32C_TARGET void advance_together(std::uint32_t* crcs, const void* const* data, std::size_t bytes) {
    std::uint32_t states[streams];
    const std::uint8_t* bytes_of[streams];
    for (std::size_t k = 0; k < streams; ++k) {
        states[k] = ~crcs[k];
        bytes_of[k] = static_cast<const std::uint8_t*>(data[k]);
    }
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        for (std::size_t k = 0; k < streams; ++k) states[k] = crc32c_of_8(states[k], load_word(bytes_of[k] + i));
    }
    for (std::size_t k = 0; k < streams; ++k) {
        for (std::size_t rest = i; rest < bytes; ++rest) states[k] = crc32c_of_1(states[k], bytes_of[k][rest]);
        crcs[k] = ~states[k];
    }
}

#endif

}  // namespace

std::uint32_t versions::crc32c_by_table(std::uint32_t crc, const void* data, std::size_t bytes) {
    return ~advance_by_table(~crc, static_cast<const std::uint8_t*>(data), bytes);
}

bool versions::has_crc32c_instruction() {
#if defined(LUWU_CRC32C_TARGET)
    static const bool exists = crc32c_instruction_exists();
    return exists;
#else
    return false;
#endif
}

std::uint32_t versions::crc32c_by_instruction(std::uint32_t crc, const void* data, std::size_t bytes) {
#if defined(LUWU_CRC32C_TARGET)
    return ~advance(~crc, static_cast<const std::uint8_t*>(data), bytes);
#else
    return crc32c_by_table(crc, data, bytes);
#endif
}

bool versions::has_crc32c_folding() {
#if defined(LUWU_FOLD_TARGET)
    static const bool exists = crc32c_folding_exists();
    return exists;
#else
    return false;
#endif
}

std::uint32_t versions::crc32c_by_folding(std::uint32_t crc, const void* data, std::size_t bytes) {
#if defined(LUWU_FOLD_TARGET)
    const auto* from = static_cast<const std::uint8_t*>(data);
    const std::size_t folded = bytes / kFoldBytes * kFoldBytes;
    const std::uint32_t state = folded != 0 ? advance_by_folding(~crc, from, folded) : ~crc;
    return ~advance(state, from + folded, bytes - folded);
#else
    return crc32c_by_instruction(crc, data, bytes);
#endif
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
    if (versions::has_crc32c_folding()) return versions::crc32c_by_folding(crc, data, bytes);
    if (versions::has_crc32c_instruction()) return versions::crc32c_by_instruction(crc, data, bytes);
    return versions::crc32c_by_table(crc, data, bytes);
}

void crc32c_parallel(std::uint32_t* crcs, const void* const* data, std::size_t streams, std::size_t bytes) {
#if defined(LUWU_CRC32C_TARGET)
    if (versions::has_crc32c_instruction() && !versions::has_crc32c_folding()) {
        for (; streams > 4; streams -= 4, crcs += 4, data += 4) advance_together<4>(crcs, data, bytes);
        if (streams == 4) return advance_together<4>(crcs, data, bytes);
        if (streams == 3) return advance_together<3>(crcs, data, bytes);
    }
#endif
    // Folding fills its latency with one stream. One or two streams do not fill the instruction's; a single stream in
    // three parts does.
    for (std::size_t k = 0; k < streams; ++k) crcs[k] = crc32c(crcs[k], data[k], bytes);
}

}  // namespace luwu::kernels
