// Optimizer states in fewer bytes: what is written against plain references, on every instruction set bit for bit, and
// what the codes promise to the updates that read them.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernel_support.h"
#include "kernels/remainder.h"
#include "kernels/state_code.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

constexpr auto kSigned = StateCode::signed_8bit;
constexpr auto kRoot = StateCode::root_8bit;
constexpr std::size_t kLengths[] = {0, 1, 255, 256, 257, 2047, 2048, 2049, 5000};

// Values over many magnitudes, as states are: some zeros, one group of nothing but zeros, one of very small values.
std::vector<float> state_values(std::size_t count, std::uint32_t seed, bool negative) {
    std::vector<float> values = random_floats(count, seed);
    const std::vector<float> exponents = random_floats(count, seed + 1, -20.0F, 0.0F);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = std::ldexp(values[i], static_cast<int>(exponents[i]));
        if (!negative) values[i] *= values[i];
        if (i % 97 == 5 || (i >= 512 && i < 768)) values[i] = 0.0F;
        if (i >= 768 && i < 1024) values[i] = std::ldexp(values[i], -120);
    }
    return values;
}

// Code of one value, element by element and with divisions written out.
std::uint32_t reference_code(StateCode code, float value, float scale, std::size_t place, std::uint64_t t) {
    const bool root = code == kRoot;
    const std::uint32_t dropped = root ? 19 : 20;
    const std::uint32_t top = root ? 255 : 127;
    const float range = root ? 63487.0F : 61439.0F;
    const float factor = scale > 0.0F ? range / scale : 0.0F;
    std::uint32_t turn = static_cast<std::uint32_t>(t) * 0xC13FA9A9U + static_cast<std::uint32_t>(place) * 0x91E10DA5U;
    if (root) turn += 0x80000000U;
    const auto above = std::bit_cast<std::uint32_t>(std::abs(value) * factor + 1.0F) - 0x3F800000U;
    const std::uint32_t found = std::min((above + (turn >> (32 - dropped))) >> dropped, top);
    if (root) return found == 0 && value != 0.0F ? 1 : found;
    return found + (std::signbit(value) ? 128U : 0U);
}

std::vector<std::byte> reference_plane(StateCode code, const std::vector<float>& values, std::uint64_t t) {
    std::vector<std::byte> plane(plane_bytes(code, values.size()));
    for (std::size_t group = 0; group * kScaleElements < plane.size() / kCellBytes * kCellElements; ++group) {
        const std::size_t cell = group / kCellScales * kCellBytes;
        const auto at = [&](std::size_t i) {
            const float value = group * kScaleElements + i < values.size() ? values[group * kScaleElements + i] : 0.0F;
            return code == kRoot ? std::sqrt(value) : value;
        };
        float scale = 0;
        for (std::size_t i = 0; i < kScaleElements; ++i) scale = std::max(scale, std::abs(at(i)));
        if (scale < 0x1p-100F) scale = 0;
        std::memcpy(plane.data() + cell + group % kCellScales * sizeof(float), &scale, sizeof scale);
        const std::size_t place = group % kCellScales * kScaleElements;
        for (std::size_t i = 0; i < kScaleElements; ++i) {
            plane[cell + kCellScales * sizeof(float) + place + i] =
                static_cast<std::byte>(reference_code(code, at(i), scale, place + i, t));
        }
    }
    return plane;
}

float largest_of_group(const std::vector<float>& values, std::size_t i) {
    const std::size_t first = i / kScaleElements * kScaleElements;
    float most = 0;
    for (std::size_t k = first; k < std::min(first + kScaleElements, values.size()); ++k) {
        most = std::max(most, std::abs(values[k]));
    }
    return most;
}

}  // namespace

TEST_CASE("states of 8 bits are written as the reference does, on every instruction set") {
    for (const StateCode code : {kSigned, kRoot}) {
        for (const std::size_t length : kLengths) {
            for (const std::uint64_t t : {1ULL, 2ULL, 12345ULL, (1ULL << 32) + 7}) {
                const std::vector<float> values = state_values(length, 3, code == kSigned);
                const std::vector<std::byte> expected = reference_plane(code, values, t);
                std::vector<float> decoded;
                for (const InstructionSet set : available_sets()) {
                    std::vector<std::byte> plane(plane_bytes(code, length) + 1, std::byte{0x5A});
                    versions::encode(set, code, values.data(), plane.data(), length, t);
                    REQUIRE(plane.back() == std::byte{0x5A});
                    plane.pop_back();
                    REQUIRE(plane == expected);
                    std::vector<float> back(length + 1, 7.0F);
                    versions::decode(set, code, plane.data(), back.data(), length);
                    REQUIRE(back.back() == 7.0F);
                    if (decoded.empty()) decoded = back;
                    REQUIRE(same_bits(back, decoded));
                }
            }
        }
    }
}

TEST_CASE("a state of 8 bits comes back within a step of its code, and zero as zero") {
    for (const StateCode code : {kSigned, kRoot}) {
        const std::vector<float> values = state_values(5000, 9, code == kSigned);
        std::vector<std::byte> plane(plane_bytes(code, values.size()));
        std::vector<float> back(values.size());
        encode(code, values.data(), plane.data(), values.size(), 5);
        decode(code, plane.data(), back.data(), values.size());
        const auto coded = [code](float value) { return code == kRoot ? std::sqrt(value) : value; };
        for (std::size_t i = 0; i < values.size(); ++i) {
            const float most = coded(largest_of_group(values, i));
            if (values[i] == 0.0F || most < 0x1p-100F) {
                REQUIRE(back[i] == 0.0F);
                continue;
            }
            const float step = code == kRoot ? 1.0F / 16 : 1.0F / 8;  // of 1 + y, at most
            const float least = step * most / (code == kRoot ? 63487.0F : 61439.0F);
            REQUIRE(std::abs(coded(back[i]) - coded(values[i])) <=
                    1.001F * (step * std::abs(coded(values[i])) + least));
            if (code == kRoot) REQUIRE(back[i] > 0.0F);
        }
    }
}

TEST_CASE("the mean of a state of 8 bits over steps is the state") {
    constexpr int kSteps = 4000;
    for (const StateCode code : {kSigned, kRoot}) {
        std::vector<float> values(kScaleElements, 0.0F);
        values[0] = 1.0F;
        for (std::size_t i = 1; i < values.size(); ++i) values[i] = std::ldexp(1.0F, -static_cast<int>(i % 13)) * 0.77F;
        std::vector<double> sums(values.size(), 0.0);
        std::vector<std::byte> plane(plane_bytes(code, values.size()));
        std::vector<float> back(values.size());
        for (std::uint64_t t = 1; t <= kSteps; ++t) {
            encode(code, values.data(), plane.data(), values.size(), t);
            decode(code, plane.data(), back.data(), values.size());
            for (std::size_t i = 0; i < values.size(); ++i) {
                sums[i] += code == kRoot ? std::sqrt(static_cast<double>(back[i])) : static_cast<double>(back[i]);
            }
        }
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double expected = code == kRoot ? std::sqrt(static_cast<double>(values[i])) : values[i];
            CHECK(sums[i] / kSteps == doctest::Approx(expected).epsilon(2e-4));
        }
    }
}

TEST_CASE("a plane of zero bytes holds zeros") {
    for (const StateCode code : {kSigned, kRoot}) {
        const std::vector<std::byte> plane(plane_bytes(code, 3000));
        std::vector<float> back(3000, 7.0F);
        decode(code, plane.data(), back.data(), back.size());
        CHECK(std::ranges::all_of(back, [](float value) { return std::bit_cast<std::uint32_t>(value) == 0; }));
    }
}

TEST_CASE("a master comes back exactly from its copy and its remainder") {
    std::vector<float> master = random_floats(3000, 11, -1e3F, 1e3F);
    const std::uint32_t special[] = {0x00000000, 0x80000000, 0x3F808000, 0x3F818000, 0x3F808001,
                                     0x3F807FFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
                                     0x00000001, 0x80008000, 0x0000FFFF, 0x7F7F8000};
    for (std::size_t i = 0; i < std::size(special); ++i) master[3 * i] = std::bit_cast<float>(special[i]);
    for (const InstructionSet set : available_sets()) {
        for (std::size_t length = 0; length <= kLongest; ++length) {
            const std::size_t from = length % kMisalignments;
            std::vector<std::uint16_t> copy(length + 1, 0x5A5A);
            std::vector<std::uint16_t> remainder(length + 1, 0x5A5A);
            std::vector<float> back(length + 1, 7.0F);
            versions::split_master(set, master.data() + from, copy.data(), remainder.data(), length);
            versions::join_master(set, copy.data(), remainder.data(), back.data(), length);
            REQUIRE(std::memcmp(back.data(), master.data() + from, length * sizeof(float)) == 0);
            REQUIRE(copy.back() == 0x5A5A);
            REQUIRE(remainder.back() == 0x5A5A);
            REQUIRE(back.back() == 7.0F);
            for (std::size_t i = 0; i < length; ++i) {
                const auto bits = std::bit_cast<std::uint32_t>(master[from + i]);
                REQUIRE(copy[i] == static_cast<std::uint16_t>((bits + 0x8000U) >> 16));
            }
        }
    }
    std::uint16_t copy = 0;
    std::uint16_t remainder = 0;
    float back = 0;
    split_master(&kNan, &copy, &remainder, 1);
    join_master(&copy, &remainder, &back, 1);
    CHECK(std::isnan(as_float(Dtype::bfloat16, copy)));
    CHECK(std::isnan(back));
}

}  // namespace luwu::kernels
