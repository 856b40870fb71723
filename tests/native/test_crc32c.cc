// CRC32C against its definition and published values.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/crc32c.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

std::uint32_t reference_crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t bytes) {
    crc = ~crc;
    for (std::size_t i = 0; i < bytes; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    }
    return ~crc;
}

std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::mt19937 generator(11);
    std::vector<std::uint8_t> bytes(count);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    return bytes;
}

}  // namespace

TEST_CASE("CRC32C gives the published values") {
    CHECK(crc32c(0, "123456789", 9) == 0xE3069283U);
    CHECK(versions::crc32c_by_table(0, "123456789", 9) == 0xE3069283U);
    // RFC 3720, B.4
    std::vector<std::uint8_t> data(32, 0);
    CHECK(crc32c(0, data.data(), 32) == 0x8A9136AAU);
    data.assign(32, 0xFF);
    CHECK(crc32c(0, data.data(), 32) == 0x62A8AB43U);
    for (std::size_t i = 0; i < 32; ++i) data[i] = static_cast<std::uint8_t>(i);
    CHECK(crc32c(0, data.data(), 32) == 0x46DD794EU);
    CHECK(crc32c(0x1234U, nullptr, 0) == 0x1234U);
}

TEST_CASE("CRC32C in every version agrees with the definition, and chains") {
    const std::vector<std::uint8_t> data = random_bytes(20000);
    for (std::size_t bytes = 0; bytes <= 1100; ++bytes) {
        const std::uint8_t* const from = data.data() + bytes % 9;
        const std::uint32_t expected = reference_crc32c(0, from, bytes);
        REQUIRE(versions::crc32c_by_table(0, from, bytes) == expected);
        REQUIRE(crc32c(0, from, bytes) == expected);
    }
    for (const std::size_t bytes : {3071U, 3072U, 3073U, 6143U, 6144U, 10001U, 19990U}) {
        const std::uint8_t* const from = data.data() + bytes % 9;
        const std::uint32_t expected = reference_crc32c(0x55U, from, bytes);
        REQUIRE(versions::crc32c_by_table(0x55U, from, bytes) == expected);
        if (versions::has_crc32c_instruction()) {
            REQUIRE(versions::crc32c_by_instruction(0x55U, from, bytes) == expected);
        }
        if (versions::has_crc32c_folding()) REQUIRE(versions::crc32c_by_folding(0x55U, from, bytes) == expected);
        const std::size_t half = bytes / 2 + 3;
        REQUIRE(crc32c(crc32c(0x55U, from, half), from + half, bytes - half) == expected);
    }
}

TEST_CASE("CRC32C of parallel streams is that of each") {
    const std::vector<std::uint8_t> data = random_bytes(40000);
    for (std::size_t streams = 0; streams <= 9; ++streams) {
        for (const std::size_t bytes : {0U, 1U, 7U, 8U, 100U, 4001U}) {
            std::vector<const void*> from;
            std::vector<std::uint32_t> crcs;
            for (std::size_t k = 0; k < streams; ++k) {
                from.push_back(data.data() + k * 4003);
                crcs.push_back(static_cast<std::uint32_t>(k * 77));
            }
            crc32c_parallel(crcs.data(), from.data(), streams, bytes);
            for (std::size_t k = 0; k < streams; ++k) {
                REQUIRE(crcs[k] == reference_crc32c(static_cast<std::uint32_t>(k * 77), data.data() + k * 4003, bytes));
            }
        }
    }
}

}  // namespace luwu::kernels
