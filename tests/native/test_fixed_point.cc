// Block floating point against its definition in double precision, in every instruction set, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fixed_point_support.h"
#include "instruction_sets.h"
#include "kernels/convert.h"
#include "kernels/versions.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace luwu::kernels {

TEST_CASE("fixed point leaves room for the sum of all workers") {
    CHECK(fixed_bits(FixedForm::int16, 1) == 15);
    CHECK(fixed_bits(FixedForm::int16, 2) == 14);
    CHECK(fixed_bits(FixedForm::int16, 3) == 13);
    CHECK(fixed_bits(FixedForm::int16, 4) == 13);
    CHECK(fixed_bits(FixedForm::int16, 5) == 12);
    CHECK(fixed_bits(FixedForm::int16, kFixedMostWorkers) == 2);
    CHECK(fixed_bits(FixedForm::int32, 1) == 31);
    CHECK(fixed_bits(FixedForm::int32, 64) == 25);
    CHECK(fixed_groups(0) == 0);
    CHECK(fixed_groups(1) == 1);
    CHECK(fixed_groups(32) == 1);
    CHECK(fixed_groups(33) == 2);
}

TEST_CASE("exponents are those of the largest magnitudes, whatever the length and alignment") {
    for (std::size_t length = 0; length <= kLongest; ++length) {
        std::vector<float> values = spread_floats(length, static_cast<std::uint32_t>(length), -130, 127);
        if (length % 3 == 0) std::fill_n(values.begin(), std::min<std::size_t>(length, 40), length % 2 ? 0.0F : -0.0F);
        const float special[] = {kInfinity, -kInfinity, kNan, -kNan, kLargest, kLeastDenormal, 0x1p-95F, -0x1.8p-96F};
        if (length % 4 == 0 && length > 0) values[length * 5 / 7] = special[length / 4 % std::size(special)];
        if (length % 4 == 1) values[length - 1] = special[length / 4 % std::size(special)];
        std::vector<std::uint16_t> narrow(length);
        std::vector<float> widened(length);
        for (std::size_t i = 0; i < length; ++i) {
            narrow[i] = static_cast<std::uint16_t>(bits_of(values[i]) >> 16);
            widened[i] = std::bit_cast<float>(std::uint32_t{narrow[i]} << 16);
        }
        for (const InstructionSet set : available_sets()) {
            Packet wide_packet(values, length % 7);
            Packet exponents(fixed_groups(length), 0);
            auto* const to = reinterpret_cast<std::uint8_t*>(exponents.data());
            versions::fixed_exponents(set, wide_packet.data(), Dtype::float32, length, to);
            REQUIRE(exponents == Packet(reference_exponents(values), 0));
            Packet narrow_packet(narrow, length % 5);
            versions::fixed_exponents(set, narrow_packet.data(), Dtype::bfloat16, length, to);
            REQUIRE(exponents == Packet(reference_exponents(widened), 0));
        }
    }
}

TEST_CASE("every float16 goes on the wire as the float that it is") {
    std::vector<std::uint16_t> halves(1U << 16);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i * 0x9E37U);  // mixed
    std::vector<float> floats(halves.size());
    low_to_float(Dtype::float16, halves.data(), floats.data(), floats.size());
    for (const InstructionSet set : available_sets()) {
        std::vector<std::uint8_t> expected(fixed_groups(halves.size()));
        std::vector<std::uint8_t> found(expected.size());
        versions::fixed_exponents(set, floats.data(), Dtype::float32, floats.size(), expected.data());
        versions::fixed_exponents(set, halves.data(), Dtype::float16, halves.size(), found.data());
        REQUIRE(found == expected);
        for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
            for (std::uint8_t& exponent : expected) exponent = std::min<std::uint8_t>(exponent, 143);  // finite
            std::vector<std::byte> of_floats(floats.size() * size_of(form));
            std::vector<std::byte> of_halves(of_floats.size());
            versions::fixed_encode(set, floats.data(), Dtype::float32, floats.size(), expected.data(), form, 2,
                                   of_floats.data());
            versions::fixed_encode(set, halves.data(), Dtype::float16, halves.size(), expected.data(), form, 2,
                                   of_halves.data());
            REQUIRE(of_halves == of_floats);
        }
    }
}

TEST_CASE("a group that is zero, tiny or not finite has its own exponent") {
    const auto exponent_of = [](float value, std::size_t place) {
        std::vector<float> group(kFixedGroup, 0.0F);
        group[place] = value;
        std::uint8_t exponent = 77;
        fixed_exponents(group.data(), Dtype::float32, group.size(), &exponent);
        return exponent;
    };
    for (std::size_t place = 0; place < kFixedGroup; ++place) {
        REQUIRE(exponent_of(0.0F, place) == kFixedZero);
        REQUIRE(exponent_of(-0.0F, place) == kFixedZero);
        REQUIRE(exponent_of(kLeastDenormal, place) == kFixedLeastExponent);
        REQUIRE(exponent_of(-0x1p-96F, place) == kFixedLeastExponent);
        REQUIRE(exponent_of(0x1p-94F, place) == kFixedLeastExponent + 1);
        REQUIRE(exponent_of(1.0F, place) == 127);
        REQUIRE(exponent_of(-kLargest, place) == 254);
        for (const float bad : {kInfinity, -kInfinity, kNan, -kNan})
            REQUIRE(exponent_of(bad, place) == kFixedNotFinite);
    }
}

TEST_CASE("mantissas and decoded sums follow the definition, whatever the length and alignment") {
    for (std::size_t length = 0; length <= kLongest; ++length) {
        const std::uint32_t workers = 1U << (length % 14);
        const int lowest = length % 3 == 0 ? -149 : -40;
        std::vector<float> values = spread_floats(length, static_cast<std::uint32_t>(length), lowest, lowest + 50);
        if (length > 40) values[35] = length % 2 == 0 ? kInfinity : kNan;
        std::vector<std::uint16_t> narrow(length);
        for (std::size_t i = 0; i < length; ++i) narrow[i] = static_cast<std::uint16_t>(bits_of(values[i]) >> 16);
        const std::vector<std::uint8_t> exponents = reference_exponents(values);
        for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
            const int bits = bits_for(form, workers);
            for (const InstructionSet set : available_sets()) {
                Packet wide_packet(values, length % 7);
                Packet narrow_packet(narrow, length % 5);
                Packet mantissas(length * size_of(form), length % 3);
                Packet of_narrow(length * size_of(form), length % 3);
                versions::fixed_encode(set, wide_packet.data(), Dtype::float32, length, exponents.data(), form, workers,
                                       mantissas.data());
                versions::fixed_encode(set, narrow_packet.data(), Dtype::bfloat16, length, exponents.data(), form,
                                       workers, of_narrow.data());
                std::vector<float> decoded(length + 1, 7.0F);
                versions::fixed_decode(set, mantissas.data(), form, length, exponents.data(), workers, decoded.data());
                for (std::size_t i = 0; i < length; ++i) {
                    const int exponent = exponents[i / kFixedGroup];
                    const float widened = std::bit_cast<float>(std::uint32_t{narrow[i]} << 16);
                    const std::int64_t mantissa = mantissas.mantissa(form, i);
                    REQUIRE(mantissa == reference_mantissa(values[i], exponent, bits));
                    REQUIRE(of_narrow.mantissa(form, i) == reference_mantissa(widened, exponent, bits));
                    const std::uint32_t expected =
                        exponent == 255 ? kQuietNan : bits_of(reference_value(mantissa, exponent, bits));
                    REQUIRE(bits_of(decoded[i]) == expected);
                }
                REQUIRE(mantissas.margins_are_whole());
                REQUIRE(of_narrow.margins_are_whole());
                REQUIRE(decoded[length] == 7.0F);
            }
        }
    }
}

TEST_CASE("every scale is exact, for every exponent and number of workers") {
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        for (std::uint32_t workers = 1; workers <= kFixedMostWorkers; workers *= 2) {
            const std::int64_t half = std::int64_t{1} << (bits_for(form, workers) - 1);
            for (int exponent = kFixedLeastExponent; exponent < 255; ++exponent) {
                const std::vector<std::uint8_t> exponents = {static_cast<std::uint8_t>(exponent)};
                const std::vector<float> values = {std::ldexp(1.0F, exponent - 127), -std::ldexp(1.0F, exponent - 127)};
                const Packet mantissas = encode(values, exponents, form, workers);
                REQUIRE(mantissas.mantissa(form, 0) == half);
                REQUIRE(mantissas.mantissa(form, 1) == -half);
                REQUIRE(decode(mantissas, exponents, form, workers, 2) == values);
            }
        }
    }
}

TEST_CASE("mantissas round to nearest, ties to even, and stay within their bits") {
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        for (const std::uint32_t workers : {1U, 2U, 100U, 8192U}) {
            const int bits = bits_for(form, workers);
            const float step = std::ldexp(1.0F, -bits);
            const float below_one = std::nextafter(1.0F, 0.0F);
            const std::vector<float> values = {0.5F * step,  1.5F * step,  2.5F * step,  -0.5F * step, -1.5F * step,
                                               -2.5F * step, 0.49F * step, 0.51F * step, below_one,    -below_one};
            const Packet mantissas = encode(values, {126}, form, workers);
            const std::int64_t expected[] = {0, 2, 2, 0, -2, -2, 0, 1};
            for (std::size_t i = 0; i < std::size(expected); ++i) REQUIRE(mantissas.mantissa(form, i) == expected[i]);
            const std::int64_t most =
                (std::int64_t{1} << bits) - std::max<std::int64_t>(1, std::int64_t{1} << bits >> 24);
            REQUIRE(mantissas.mantissa(form, 8) == most);
            REQUIRE(mantissas.mantissa(form, 9) == -most);
        }
    }
}

TEST_CASE("values and exponents that do not belong together do no harm") {
    const std::vector<float> values = {1.0F, -1.0F, kLargest, -kLargest, kInfinity, -kInfinity, kNan, kLeastDenormal};
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        const std::int64_t most = std::int64_t{1} << bits_for(form, 4);
        for (int exponent = 0; exponent < 256; ++exponent) {
            const Packet mantissas = encode(values, {static_cast<std::uint8_t>(exponent)}, form, 4);
            for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(std::abs(mantissas.mantissa(form, i)) < most);
            const bool is_empty = exponent == kFixedZero || exponent == kFixedNotFinite;
            REQUIRE((mantissas.mantissa(form, 4) == 0) == is_empty);
        }
        REQUIRE(encode(values, {1}, form, 4) == encode(values, {kFixedLeastExponent}, form, 4));
    }
}

TEST_CASE("tiny groups lose low bits, but no more than groups of 2^-95") {
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        const int bits = bits_for(form, 1);
        for (int power = -96; power >= -149; --power) {
            const float value = std::ldexp(1.0F, power);
            std::uint8_t exponent = 0;
            fixed_exponents(&value, Dtype::float32, 1, &exponent);
            const float found = decode(encode({value}, {exponent}, form, 1), {exponent}, form, 1, 1)[0];
            REQUIRE(std::abs(found - value) <= std::ldexp(1.0F, -95 - bits));
            if (power > -95 - bits) REQUIRE(found == value);
        }
    }
}

#if defined(__x86_64__)
TEST_CASE("a processor that takes denormals for zero finds the same mantissas and sums") {
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        for (const int lowest : {-149, -127, -100, 100}) {
            std::vector<float> values = spread_floats(kLongest, 17, lowest, lowest + 27);
            for (std::size_t i = 5; i < values.size(); i += 9) values[i] = std::ldexp(values[i], -130);
            const auto run = [&] {
                std::vector<std::uint8_t> exponents(fixed_groups(kLongest));
                fixed_exponents(values.data(), Dtype::float32, kLongest, exponents.data());
                return decode(encode(values, exponents, form, 1), exponents, form, 1, kLongest);
            };
            const std::vector<float> expected = run();
            const unsigned before = _mm_getcsr();
            _mm_setcsr(before | 0x8040U);  // denormal results, and denormal inputs, are zero
            const std::vector<float> found = run();
            _mm_setcsr(before);
            REQUIRE(std::memcmp(found.data(), expected.data(), kLongest * sizeof(float)) == 0);
        }
    }
}
#endif

TEST_CASE("one group that is not finite leaves its neighbours alone") {
    std::vector<float> values(3 * kFixedGroup, 0.75F);
    values[40] = kInfinity;
    for (const FixedForm form : {FixedForm::int16, FixedForm::int32}) {
        const std::vector<std::uint8_t> exponents = reference_exponents(values);
        const std::vector<float> found = decode(encode(values, exponents, form, 3), exponents, form, 3, values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            REQUIRE(bits_of(found[i]) == (i / kFixedGroup == 1 ? kQuietNan : bits_of(0.75F)));
        }
    }
}

}  // namespace luwu::kernels
