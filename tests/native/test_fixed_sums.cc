// Work of switches on mantissas, floats and exponents; a sum of workers is exact in any order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "fixed_point_support.h"
#include "instruction_sets.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

// Values whose sums come closest to overflowing, and whose rounding is closest to going astray.
std::vector<float> adversarial(std::size_t kind, std::size_t worker, int bits) {
    const float step = std::ldexp(1.0F, -bits);  // one mantissa in a group with values just below 1
    const float below_one = std::nextafter(1.0F, 0.0F);
    std::vector<float> values(2 * kFixedGroup + 5);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float place = static_cast<float>(i + worker);
        if (kind == 0) values[i] = below_one;
        if (kind == 1) values[i] = -below_one;
        if (kind == 2) values[i] = (i + worker) % 2 == 0 ? below_one : -below_one;
        if (kind == 3) values[i] = i % kFixedGroup == 0 ? below_one : (place + 0.5F) * step;
        if (kind == 4) values[i] = -(1.0F - 0.5F * step);
        if (kind == 5) values[i] = spread_floats(1, static_cast<std::uint32_t>(100 * worker + i), -40, 0)[0];
    }
    return values;
}
constexpr std::size_t kKinds = 6;

}  // namespace

TEST_CASE("a sum of workers is exact, the same in any order, never overflows, and is off by no more than stated") {
    std::mt19937 generator(5);
    for (std::size_t count = 1; count <= 64; ++count) {
        const auto workers = static_cast<std::uint32_t>(count);
        for (std::size_t kind = 0; kind < kKinds; ++kind) {
            for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
                const int bits = bits_for(form, workers);
                std::vector<std::vector<float>> values;
                std::vector<std::uint8_t> exponents(3, 0);
                for (std::size_t worker = 0; worker < count; ++worker) {
                    values.push_back(adversarial(kind, worker, bits));
                    max_exponents(exponents.data(), reference_exponents(values.back()).data(), exponents.size());
                }
                const std::size_t length = values[0].size();
                std::vector<Packet> packets;
                for (const auto& one : values) packets.push_back(encode(one, exponents, form, workers));
                const auto sum_all = [&] {
                    Packet sum(length * size_of(form), 1);
                    std::memset(sum.data(), 0, length * size_of(form));
                    for (Packet& packet : packets) add_mantissas(sum.data(), packet.data(), form, length);
                    return sum;
                };
                const Packet sum = sum_all();
                const std::vector<float> decoded = decode(sum, exponents, form, workers, length);
                for (std::size_t i = 0; i < length; ++i) {
                    std::int64_t mantissas = 0;
                    double total = 0;
                    double largest = 0;
                    const std::size_t group = i / kFixedGroup * kFixedGroup;
                    for (std::size_t worker = 0; worker < count; ++worker) {
                        mantissas += packets[worker].mantissa(form, i);
                        total += static_cast<double>(values[worker][i]);
                        for (std::size_t other = group; other < std::min(group + kFixedGroup, length); ++other) {
                            largest = std::max(largest, static_cast<double>(std::abs(values[worker][other])));
                        }
                    }
                    REQUIRE(sum.mantissa(form, i) == mantissas);
                    const double bound = workers * std::ldexp(largest, -bits) + std::ldexp(std::abs(total), -24);
                    REQUIRE(std::abs(static_cast<double>(decoded[i]) - total) <= bound);
                }
                std::shuffle(packets.begin(), packets.end(), generator);
                REQUIRE(sum_all() == sum);
            }
        }
    }
}

TEST_CASE("sums and maxima follow plain loops, whatever the length and alignment") {
    std::mt19937 generator(9);
    for (std::size_t length = 0; length <= kLongest; ++length) {
        std::vector<std::uint8_t> bytes(length * 4);
        std::vector<std::uint8_t> others(length * 4);
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
        for (std::uint8_t& byte : others) byte = static_cast<std::uint8_t>(generator());
        for (const InstructionSet set : available_sets()) {
            const Packet before(bytes, length % 7);
            Packet addend(others, length % 5);
            Packet halves = before;
            versions::add_mantissas(set, halves.data(), addend.data(), FixedForm::int16, 2 * length);
            for (std::size_t i = 0; i < 2 * length; ++i) {
                const int sum = before.value<std::uint16_t>(i) + addend.value<std::uint16_t>(i);
                REQUIRE(halves.value<std::uint16_t>(i) == static_cast<std::uint16_t>(sum));
            }
            Packet words = before;
            versions::add_mantissas(set, words.data(), addend.data(), FixedForm::int32, length);
            Packet floats = before;
            versions::add_floats(set, floats.data(), addend.data(), length);
            for (std::size_t i = 0; i < length; ++i) {
                const std::uint32_t sum = before.value<std::uint32_t>(i) + addend.value<std::uint32_t>(i);
                REQUIRE(words.value<std::uint32_t>(i) == sum);
                const float total = before.value<float>(i) + addend.value<float>(i);
                REQUIRE(floats.value<std::uint32_t>(i) == (std::isnan(total) ? kQuietNan : bits_of(total)));
            }
            Packet maxima = before;
            versions::max_exponents(set, reinterpret_cast<std::uint8_t*>(maxima.data()),
                                    reinterpret_cast<const std::uint8_t*>(addend.data()), 4 * length);
            for (std::size_t i = 0; i < 4 * length; ++i) {
                REQUIRE(maxima.value<std::uint8_t>(i) == std::max(bytes[i], others[i]));
            }
            for (const Packet* packet : {&halves, &words, &floats, &maxima}) REQUIRE(packet->margins_are_whole());
        }
    }
}

TEST_CASE("a sum of floats that is no number is always the same one") {
    const std::vector<std::uint32_t> ones = {0x7FC00001, 0xFFC00002, 0x7F800001, 0x7F800000, 0x3F800000, 0x7F800000};
    const std::vector<std::uint32_t> twos = {0xFFC00003, 0x7FC00004, 0x3F800000, 0xFF800000, 0x7FFFFFFF, 0x3F800000};
    for (const InstructionSet set : available_sets()) {
        Packet sum(ones, 0);
        Packet addend(twos, 3);
        versions::add_floats(set, sum.data(), addend.data(), ones.size());
        for (std::size_t i = 0; i < 5; ++i) REQUIRE(sum.value<std::uint32_t>(i) == kQuietNan);
        REQUIRE(sum.value<std::uint32_t>(5) == 0x7F800000);
    }
}

}  // namespace luwu::kernels
