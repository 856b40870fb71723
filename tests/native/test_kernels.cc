// The kernels against plain references, and every instruction set's version against every other, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernel_support.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/keep.h"
#include "kernels/processor.h"
#include "kernels/sum.h"
#include "kernels/versions.h"

namespace luwu::kernels {

#if defined(__x86_64__)
TEST_CASE("the processor has what the compiler's library says, where that answers") {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse2") == 0) return;  // that of zig says no to all
    const luwu::kernels::Processor& found = luwu::kernels::processor();
    CHECK(found.avx2 == (__builtin_cpu_supports("avx2") != 0));
    CHECK(found.crc32c == (__builtin_cpu_supports("sse4.2") != 0));
    CHECK(found.avx512 == (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0));
    CHECK(found.vpclmulqdq == (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0 &&
                               __builtin_cpu_supports("pclmul") != 0));
}
#endif

// A gradient as workers push it, and the values that it stands for.
struct Pushed {
    Pushed(std::vector<float> values_, Dtype dtype) : values(std::move(values_)), low(values.size()) {
        if (dtype == Dtype::float32) return;
        float_to_low(dtype, values.data(), low.data(), values.size());
        low_to_float(dtype, low.data(), values.data(), values.size());
    }

    std::vector<float> values;
    std::vector<std::uint16_t> low;
};

TEST_CASE("a trimmed mean leaves out the outermost values of each element, on every instruction set alike") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const auto check = [&](Dtype dtype, std::uint32_t workers) {
        std::vector<Pushed> pushed;
        std::vector<const void*> buffers;
        for (std::uint32_t worker = 0; worker < workers; ++worker) {
            auto values = random_floats(kLongest + 1, 100 + worker, -1, 1);
            if (worker < 2) values[3] = kNan;  // counts as the largest
            if (worker == 0) values[5] = -kInfinity;
            pushed.emplace_back(std::move(values), dtype);
        }
        for (const Pushed& one : pushed) {  // not aligned
            buffers.push_back(dtype == Dtype::float32 ? static_cast<const void*>(one.values.data() + 1)
                                                      : static_cast<const void*>(one.low.data() + 1));
        }
        for (const std::size_t trims : {std::size_t{1}, std::size_t{(workers - 1) / 2}}) {
            for (const std::size_t length : {std::size_t{1}, std::size_t{31}, std::size_t{64}, kLongest}) {
                std::vector<float> first;
                for (const InstructionSet set : available_sets()) {
                    std::vector<float> found(length + 1, 7);
                    versions::trimmed_mean(set, found.data(), {buffers.data(), workers, dtype, 9}, trims, length);
                    REQUIRE(found[length] == 7);
                    if (first.empty()) first = found;
                    REQUIRE(found == first);
                }
                for (std::size_t i = 0; i < length; ++i) {
                    std::vector<float> sorted;
                    for (const Pushed& one : pushed) {
                        const float value = one.values[i + 1];
                        sorted.push_back(value != value ? kInfinity : value);
                    }
                    std::ranges::sort(sorted);
                    double sum = 0;
                    for (std::size_t at = trims; at < workers - trims; ++at) sum += sorted[at];
                    const double expected = sum / static_cast<double>(workers - 2 * trims);
                    if (std::isfinite(expected)) {
                        REQUIRE(std::abs(first[i] - expected) < 1e-6);
                    } else {
                        REQUIRE(first[i] == static_cast<float>(expected));
                    }
                }
            }
        }
    };
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
        for (const std::uint32_t workers : {3U, 4U, 5U, 8U, 64U}) check(dtype, workers);
    }
}

TEST_CASE("the chosen instruction set is the best available one") {
    CHECK(is_available(InstructionSet::base));
    CHECK(is_available(best_instruction_set()));
    CHECK(best_instruction_set() == available_sets().back());
    CHECK(std::string(instruction_set()).size() > 3);
}

TEST_CASE("bfloat16 conversion rounds to nearest even, whatever the length and alignment") {
    std::vector<float> source = random_floats(kLongest + kMisalignments, 7, -1e3F, 1e3F);
    const std::uint32_t special[] = {0x00000000, 0x80000000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF,
                                     0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF,
                                     0x00000001, 0x80000001, 0x00008000, 0x00018000, 0x007FFFFF};
    for (std::size_t i = 0; i < std::size(special); ++i) source[3 * i] = std::bit_cast<float>(special[i]);
    for (const InstructionSet set : available_sets()) {
        for (std::size_t length = 0; length <= kLongest; ++length) {
            const std::size_t from = length % kMisalignments;
            std::vector<std::uint16_t> target(kLongest + kMisalignments + 1, 0x5A5A);
            versions::float_to_low(set, Dtype::bfloat16, source.data() + from, target.data() + 1, length);
            for (std::size_t i = 0; i < length; ++i) REQUIRE(target[1 + i] == reference_bfloat16(source[from + i]));
            REQUIRE(target[0] == 0x5A5A);
            REQUIRE(target[1 + length] == 0x5A5A);
        }
    }
}

TEST_CASE("widening is exact for every bfloat16 value") {
    std::vector<std::uint16_t> source(1U << 16);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint16_t>(i);
    for (const InstructionSet set : available_sets()) {
        std::vector<float> target(source.size());
        versions::low_to_float(set, Dtype::bfloat16, source.data(), target.data(), source.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            REQUIRE(std::bit_cast<std::uint32_t>(target[i]) == static_cast<std::uint32_t>(i) << 16);
        }
    }
}

TEST_CASE("widening is exact for every float16 value, and narrowing gives it back") {
    std::vector<std::uint16_t> source(1U << 16);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint16_t>(i);
    for (const InstructionSet set : available_sets()) {
        std::vector<float> target(source.size());
        versions::low_to_float(set, Dtype::float16, source.data(), target.data(), source.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            REQUIRE(std::bit_cast<std::uint32_t>(target[i]) ==
                    std::bit_cast<std::uint32_t>(reference_widened(source[i])));
        }
        std::vector<std::uint16_t> back(source.size());
        versions::float_to_low(set, Dtype::float16, target.data(), back.data(), back.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            const bool is_nan = (i & 0x7FFFU) > 0x7C00U;
            REQUIRE(back[i] == (is_nan ? source[i] | 0x0200U : source[i]));
        }
    }
}

TEST_CASE("float16 conversion rounds to nearest even at every boundary, whatever the length and alignment") {
    // Every float16 that is no NaN, the middle to the next one, and the floats beside that.
    std::vector<float> source;
    for (std::uint32_t half = 0; half < 0x7C00U; ++half) {
        const float here = reference_widened(static_cast<std::uint16_t>(half));
        const float next = half == 0x7BFFU ? 65536.0F : reference_widened(static_cast<std::uint16_t>(half + 1));
        const float middle = here + (next - here) / 2;
        for (const float value : {here, std::nextafter(middle, here), middle, std::nextafter(middle, next)}) {
            source.push_back(value);
            source.push_back(-value);
        }
    }
    const std::uint32_t special[] = {0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF,
                                     0x7F802000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x80000001, 0x007FFFFF,
                                     0x33000000, 0x33000001, 0x477FEFFF, 0x477FF000, 0x47800000};
    for (const std::uint32_t bits : special) source.push_back(std::bit_cast<float>(bits));
    std::vector<std::uint16_t> expected(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) expected[i] = reference_float16(source[i]);
    for (const InstructionSet set : available_sets()) {
        std::vector<std::uint16_t> target(source.size());
        versions::float_to_low(set, Dtype::float16, source.data(), target.data(), source.size());
        for (std::size_t i = 0; i < source.size(); ++i) REQUIRE(target[i] == expected[i]);
        for (std::size_t length = 0; length <= kLongest; ++length) {
            const std::size_t from = length * 301;
            std::vector<std::uint16_t> part(kLongest + 2, 0x5A5A);
            versions::float_to_low(set, Dtype::float16, source.data() + from, part.data() + 1, length);
            for (std::size_t i = 0; i < length; ++i) REQUIRE(part[1 + i] == expected[from + i]);
            REQUIRE(part[0] == 0x5A5A);
            REQUIRE(part[1 + length] == 0x5A5A);
        }
    }
}

TEST_CASE("a copy past the cache is whole, and nothing more, whatever the length and alignment") {
    const std::vector<float> values = random_floats(kLongest, 13);
    const auto* const source = reinterpret_cast<const std::byte*>(values.data());
    for (std::size_t length = 0; length + kMisalignments <= kLongest * sizeof(float); ++length) {
        const std::size_t from = length % kMisalignments;
        const std::size_t to = 1 + length % 67;
        std::vector<std::byte> target(kLongest * sizeof(float) + 70, std::byte{0x5A});
        copy_past_cache(target.data() + to, source + from, length);
        REQUIRE(std::memcmp(target.data() + to, source + from, length) == 0);
        REQUIRE(target[to - 1] == std::byte{0x5A});
        REQUIRE(target[to + length] == std::byte{0x5A});
    }
}

TEST_CASE("gradients are summed in the workers' order, then scaled") {
    for (const Dtype dtype : kDtypesToTest) {
        for (std::size_t count = 1; count <= 5; ++count) {
            for (std::size_t length = 0; length <= kLongest; length += 1 + count) {
                const Workers workers(count, dtype, length, length % kMisalignments);
                for (const InstructionSet set : available_sets()) {
                    std::vector<float> out(length + 2, 7.0F);
                    versions::sum_gradients(set, out.data() + 1, workers.gradients(), length);
                    for (std::size_t i = 0; i < length; ++i) REQUIRE(out[1 + i] == workers.sum(i));
                    REQUIRE(out.front() == 7.0F);
                    REQUIRE(out.back() == 7.0F);
                }
            }
        }
    }
}

TEST_CASE("kept gradients are what an update reads, and their squares the same bits on all instruction sets") {
    for (const Dtype dtype : kDtypesToTest) {
        for (std::size_t length = 0; length <= kLongest; ++length) {
            for (const std::size_t count : {1U, 3U}) {
                const Workers workers(count, dtype, length, length % kMisalignments);
                const std::size_t size = size_of(kept_dtype(count, dtype));
                double reference = 0;
                for (std::size_t i = 0; i < length; ++i) reference += double{workers.sum(i)} * double{workers.sum(i)};
                std::vector<std::byte> first((length + 1) * size, std::byte{7});
                const double squares =
                    versions::keep_gradients(InstructionSet::base, first.data(), workers.gradients(), length);
                CHECK(squares == doctest::Approx(reference).epsilon(1e-13));
                CHECK(first.back() == std::byte{7});
                const void* kept = first.data();
                const Gradients again{&kept, 1, kept_dtype(count, dtype), workers.gradients().scale};
                std::vector<float> out(length);
                sum_gradients(out.data(), again, length);
                for (std::size_t i = 0; i < length; ++i) REQUIRE(out[i] == workers.sum(i));
                for (const InstructionSet set : available_sets()) {
                    std::vector<std::byte> other(first.size(), std::byte{7});
                    REQUIRE(versions::keep_gradients(set, other.data(), workers.gradients(), length) == squares);
                    REQUIRE(other == first);
                }
            }
        }
    }
}

TEST_CASE("squares of gradients are finite exactly when these are") {
    std::vector<float> kept(100);
    for (const float bad : {kInfinity, -kInfinity, kNan, 3e38F}) {
        for (const std::size_t place : {0U, 40U, 99U}) {
            std::vector<float> gradient(100, 1.0F);
            gradient[place] = bad;
            const void* buffer = gradient.data();
            const double squares = keep_gradients(kept.data(), {&buffer, 1, Dtype::float32, 0.5F}, gradient.size());
            CHECK(std::isfinite(squares) == std::isfinite(bad));
        }
    }
}

}  // namespace luwu::kernels
