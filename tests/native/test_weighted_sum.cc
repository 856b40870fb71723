// The linear checksum: its definition in every instruction set, its linearity, and what it notices.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "instruction_sets.h"
#include "kernels/versions.h"
#include "kernels/weighted_sum.h"

namespace luwu::kernels {

namespace {

constexpr FixedForm kForms[] = {FixedForm::int16, FixedForm::int32};

std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<std::uint8_t> bytes(count);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    return bytes;
}

std::uint64_t reference(const Weights& weights, const std::uint8_t* bytes, std::size_t count, FixedForm form) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i * size_of(form) < count; ++i) {
        std::uint32_t word = 0;
        for (std::size_t place = 0; place < size_of(form) && i * size_of(form) + place < count; ++place) {
            word |= std::uint32_t{bytes[i * size_of(form) + place]} << (8 * place);
        }
        const std::int64_t value = form == FixedForm::int16 ? std::int64_t{static_cast<std::int16_t>(word)}
                                                            : std::int64_t{static_cast<std::int32_t>(word)};
        sum += std::uint64_t{weights.data()[i]} * static_cast<std::uint64_t>(value);
    }
    return sum;
}

std::uint64_t sum_of(const Weights& weights, const std::vector<std::uint8_t>& bytes, FixedForm form) {
    return weighted_sum(weights.data(), bytes.data(), bytes.size(), form);
}

}  // namespace

TEST_CASE("weights are SplitMix64's published numbers, made odd and positive") {
    const std::uint64_t published[] = {6457827717110365317U, 3203168211198807973U, 9817491932198370423U,
                                       4593380528125082431U, 16408922859458223821U};
    const Weights weights(1234567, 5);
    REQUIRE(weights.size() == 5);
    for (std::size_t i = 0; i < 5; ++i)
        CHECK(weights.data()[i] == (static_cast<std::uint32_t>(published[i] >> 33) | 1U));
    const Weights many(99, 10000);
    const Weights few(99, 10);
    for (std::size_t i = 0; i < many.size(); ++i) {
        REQUIRE(many.data()[i] % 2 == 1);
        REQUIRE(many.data()[i] < 1U << 31);
        if (i < few.size()) REQUIRE(many.data()[i] == few.data()[i]);
    }
    CHECK(Weights(1, 0).size() == 0);
}

TEST_CASE("the weighted sum follows its definition, whatever the length and alignment") {
    const Weights weights(42, 600);
    std::vector<std::uint8_t> random = random_bytes(1000, 1);
    std::vector<std::uint8_t> most_negative(1000, 0);
    for (std::size_t i = 3; i < most_negative.size(); i += 4) most_negative[i] = 0x80;
    for (const std::vector<std::uint8_t>& bytes : {random, most_negative, std::vector<std::uint8_t>(1000, 0xFF)}) {
        for (const FixedForm form : kForms) {
            for (std::size_t count = 0; count <= 800; count += count < 200 ? 1 : 37) {
                const std::uint8_t* const from = bytes.data() + count % 9;
                const std::uint64_t expected = reference(weights, from, count, form);
                for (const InstructionSet set : available_sets()) {
                    REQUIRE(versions::weighted_sum(set, weights.data(), from, count, form) == expected);
                }
            }
        }
    }
}

TEST_CASE("the weighted sum of a sum is the sum of the weighted sums") {
    constexpr std::uint32_t workers = 13;
    constexpr std::size_t elements = 352;
    const Weights weights(7, elements);
    const std::vector<std::uint8_t> exponents(fixed_groups(elements), 127);
    for (const FixedForm form : kForms) {
        std::vector<std::uint8_t> total(elements * size_of(form), 0);
        std::uint64_t sums = 0;
        for (std::uint32_t worker = 0; worker < workers; ++worker) {
            std::mt19937 generator(worker);
            std::uniform_real_distribution<float> distribution(worker < 6 ? 1.9F : -2.0F, 2.0F);
            std::vector<float> values(elements);
            for (float& value : values) value = distribution(generator);
            std::vector<std::uint8_t> mantissas(total.size());
            fixed_encode(values.data(), Dtype::float32, elements, exponents.data(), form, workers, mantissas.data());
            sums += sum_of(weights, mantissas, form);
            add_mantissas(total.data(), mantissas.data(), form, elements);
        }
        CHECK(sum_of(weights, total, form) == sums);
    }
}

TEST_CASE("the weighted sum notices flipped bits, swapped and zeroed words") {
    for (const FixedForm form : kForms) {
        const std::size_t size = size_of(form);
        std::vector<std::uint8_t> bytes = random_bytes(256, 3);
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(byte | 1U);  // no word is zero
        const std::size_t words = bytes.size() / size;
        const Weights weights(11, words);
        const std::uint64_t right = sum_of(weights, bytes, form);
        for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
            std::vector<std::uint8_t> wrong = bytes;
            wrong[bit / 8] = static_cast<std::uint8_t>(wrong[bit / 8] ^ (1U << bit % 8));
            REQUIRE(sum_of(weights, wrong, form) != right);
        }
        for (std::size_t one = 0; one < words; ++one) {
            std::vector<std::uint8_t> zeroed = bytes;
            std::memset(zeroed.data() + one * size, 0, size);
            REQUIRE(sum_of(weights, zeroed, form) != right);
            for (std::size_t two = one + 1; two < words; ++two) {
                std::vector<std::uint8_t> wrong = bytes;
                for (const std::size_t word : {one, two}) wrong[(word + 1) * size - 1] ^= 0x80U;
                REQUIRE(sum_of(weights, wrong, form) != right);
                wrong = bytes;
                for (std::size_t i = 0; i < size; ++i) std::swap(wrong[one * size + i], wrong[two * size + i]);
                if (wrong != bytes) REQUIRE(sum_of(weights, wrong, form) != right);
            }
        }
    }
}

}  // namespace luwu::kernels
