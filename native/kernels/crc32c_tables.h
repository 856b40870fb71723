// Tables for CRC32C, computed by the compiler. Internal to the kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

/// Contribution of each byte of a 32 or 64 bit word, by its place in the word.
template <std::size_t places>
using ByteTables = std::array<std::array<std::uint32_t, 256>, places>;

/// table[0] advances a state over one byte; table[k] does so and then over k zero bytes ("slicing by eight").
constexpr ByteTables<8> make_slicing_tables() {
    ByteTables<8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82F63B78U : 0U);
        tables[0][byte] = state;
    }
    for (std::size_t place = 1; place < 8; ++place) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t state = tables[place - 1][byte];
            tables[place][byte] = (state >> 8) ^ tables[0][state & 0xFFU];
        }
    }
    return tables;
}

inline constexpr ByteTables<8> kSlicingTables = make_slicing_tables();

/// Advances a state over one byte.
constexpr std::uint32_t crc32c_table_step(std::uint32_t state, std::uint8_t byte) {
    return (state >> 8) ^ kSlicingTables[0][(state ^ byte) & 0xFFU];
}

/// Tables that advance each byte of a state over `bytes` zero bytes. The map is linear, so it is enough to follow the
/// 32 states with one bit set.
constexpr ByteTables<4> make_shift_tables(std::size_t bytes) {
    std::array<std::uint32_t, 32> image{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
        std::uint32_t state = std::uint32_t{1} << bit;
        for (std::size_t done = 0; done < bytes; ++done) state = crc32c_table_step(state, 0);
        image[bit] = state;
    }
    ByteTables<4> tables{};
    for (std::size_t place = 0; place < 4; ++place) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            for (std::size_t bit = 0; bit < 8; ++bit) {
                if (((byte >> bit) & 1U) != 0) tables[place][byte] ^= image[8 * place + bit];
            }
        }
    }
    return tables;
}

constexpr std::uint32_t shift(const ByteTables<4>& tables, std::uint32_t state) {
    return tables[0][state & 0xFFU] ^ tables[1][(state >> 8) & 0xFFU] ^ tables[2][(state >> 16) & 0xFFU] ^
           tables[3][state >> 24];
}

}  // namespace luwu::kernels
