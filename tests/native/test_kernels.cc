// The kernels against plain references, and every instruction set's version against every other, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "instruction_sets.h"
#include "kernels/adamw.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/sum.h"
#include "kernels/versions.h"

namespace luwu::kernels {

namespace {

constexpr std::size_t kLongest = 200;
constexpr std::size_t kMisalignments = 5;  // in elements
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float low = -1.0F, float high = 1.0F) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> distribution(low, high);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(generator);
    return values;
}

std::uint16_t reference_bfloat16(float value) {
    if (std::isnan(value)) return 0xFFFF;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t below = bits & 0xFFFFU;
    const bool up = below > 0x8000U || (below == 0x8000U && ((bits >> 16) & 1U) != 0);
    return static_cast<std::uint16_t>((bits >> 16) + (up ? 1U : 0U));
}

float as_float(std::uint16_t bfloat16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16); }

template <class Element>
bool same_bits(const std::vector<Element>& one, const std::vector<Element>& two) {
    return one.size() == two.size() && std::memcmp(one.data(), two.data(), one.size() * sizeof(Element)) == 0;
}

// Gradients of several workers in one dtype, each buffer off its alignment by some elements.
class Workers {
  public:
    Workers(std::size_t count, Dtype dtype, std::size_t elements, std::size_t misalignment) : dtype_(dtype) {
        for (std::size_t worker = 0; worker < count; ++worker) {
            floats_.push_back(random_floats(misalignment + elements, static_cast<std::uint32_t>(worker + 1)));
            halves_.emplace_back(floats_.back().size());
            float_to_bfloat16(floats_.back().data(), halves_.back().data(), halves_.back().size());
        }
        for (std::size_t worker = 0; worker < count; ++worker) {
            const void* const whole = dtype == Dtype::float32 ? static_cast<const void*>(floats_[worker].data())
                                                              : static_cast<const void*>(halves_[worker].data());
            buffers_.push_back(static_cast<const std::byte*>(whole) + misalignment * size_of(dtype));
        }
    }

    [[nodiscard]] Gradients gradients() const {
        return {buffers_.data(), buffers_.size(), dtype_, 1.0F / static_cast<float>(buffers_.size())};
    }

    [[nodiscard]] float value(std::size_t worker, std::size_t i) const {
        if (dtype_ == Dtype::float32) return static_cast<const float*>(buffers_[worker])[i];
        return as_float(static_cast<const std::uint16_t*>(buffers_[worker])[i]);
    }

    [[nodiscard]] float sum(std::size_t i) const {
        float total = value(0, i);
        for (std::size_t worker = 1; worker < buffers_.size(); ++worker) total += value(worker, i);
        return total * gradients().scale;
    }

  private:
    Dtype dtype_;
    std::vector<std::vector<float>> floats_;
    std::vector<std::vector<std::uint16_t>> halves_;
    std::vector<const void*> buffers_;
};

// Master, m, v and the low-precision copy, with a margin on either side that no update may touch.
struct State {
    static constexpr std::size_t kMargin = 8;

    State(std::size_t elements, std::size_t misalignment_)
        : misalignment(misalignment_),
          master(random_floats(kMargin + misalignment + elements + kMargin, 100)),
          m(random_floats(master.size(), 101, -0.1F, 0.1F)),
          v(random_floats(master.size(), 102, 0.0F, 0.01F)),
          low(master.size(), 0x5A5A) {}

    [[nodiscard]] std::size_t begin() const { return kMargin + misalignment; }

    bool update(InstructionSet set, const Gradients& gradients, std::size_t elements, const AdamWStep& step,
                bool writes_low = true) {
        return versions::adamw_update(set, master.data() + begin(), m.data() + begin(), v.data() + begin(),
                                      writes_low ? low.data() + begin() : nullptr, gradients, elements, step);
    }

    [[nodiscard]] bool equals(const State& other) const {
        return same_bits(master, other.master) && same_bits(m, other.m) && same_bits(v, other.v) &&
               same_bits(low, other.low);
    }

    std::size_t misalignment;
    std::vector<float> master;
    std::vector<float> m;
    std::vector<float> v;
    std::vector<std::uint16_t> low;
};

const AdamWStep kStep = make_adamw_step(1e-2, 0.9, 0.999, 1e-8, 0.1, 3);

bool near(double found, double expected) {
    return std::abs(found - expected) <= 1e-6 * std::max(1.0, std::abs(expected));
}

// Compares an updated state with AdamW in double precision.
void check_against_reference(const State& found, const State& before, const Workers& workers, std::size_t elements,
                             const AdamWStep& step) {
    for (std::size_t i = 0; i < elements; ++i) {
        const std::size_t at = before.begin() + i;
        const double gradient = workers.sum(i);
        const double m = step.beta1 * before.m[at] + (1 - step.beta1) * gradient;
        const double v = step.beta2 * before.v[at] + (1 - step.beta2) * gradient * gradient;
        const double root = std::sqrt(v) / std::sqrt(step.bias_correction2);
        const double master = before.master[at] * (1 - step.learning_rate * step.weight_decay) -
                              step.learning_rate / step.bias_correction1 * m / (root + step.epsilon);
        REQUIRE(near(found.m[at], m));
        REQUIRE(near(found.v[at], v));
        REQUIRE(near(found.master[at], master));
        REQUIRE(found.low[at] == reference_bfloat16(found.master[at]));
    }
}

}  // namespace

TEST_CASE("the chosen instruction set is the best available one") {
    CHECK(is_available(InstructionSet::base));
    CHECK(is_available(best_instruction_set()));
    CHECK(best_instruction_set() == available_sets().back());
    CHECK(std::string(instruction_set()).size() > 3);
}

TEST_CASE("bias corrections agree with the power function") {
    for (const std::uint64_t t : {1ULL, 2ULL, 3ULL, 10ULL, 1000ULL, 123457ULL, 1ULL << 40}) {
        const AdamWStep step = make_adamw_step(1e-3, 0.9, 0.999, 1e-8, 0.0, t);
        CHECK(step.bias_correction1 == doctest::Approx(1 - std::pow(0.9, static_cast<double>(t))).epsilon(1e-12));
        CHECK(step.bias_correction2 == doctest::Approx(1 - std::pow(0.999, static_cast<double>(t))).epsilon(1e-12));
    }
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
            versions::float_to_bfloat16(set, source.data() + from, target.data() + 1, length);
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
        versions::bfloat16_to_float(set, source.data(), target.data(), source.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            REQUIRE(std::bit_cast<std::uint32_t>(target[i]) == static_cast<std::uint32_t>(i) << 16);
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
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
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

TEST_CASE("AdamW agrees with double precision, and all instruction sets with each other") {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
        for (std::size_t length = 0; length <= kLongest; ++length) {
            const std::size_t count = 1 + length % 5;
            const std::size_t misalignment = length % kMisalignments;
            const Workers workers(count, dtype, length, misalignment);
            const State before(length, misalignment);
            State base = before;
            REQUIRE(base.update(InstructionSet::base, workers.gradients(), length, kStep));
            check_against_reference(base, before, workers, length, kStep);
            for (const InstructionSet set : available_sets()) {
                State other = before;
                REQUIRE(other.update(set, workers.gradients(), length, kStep));
                REQUIRE(other.equals(base));  // the margins too
            }
        }
    }
}

TEST_CASE("AdamW gives the same bits in one piece and in many, with and without a copy") {
    constexpr std::size_t length = 5000;
    for (const std::size_t count : {1U, 2U, 3U, 4U, 5U}) {
        const Workers workers(count, Dtype::bfloat16, length, 0);
        State whole(length, 0);
        State parts = whole;
        State bare = whole;
        REQUIRE(whole.update(best_instruction_set(), workers.gradients(), length, kStep));
        REQUIRE(bare.update(best_instruction_set(), workers.gradients(), length, kStep, false));
        for (std::size_t first = 0, piece = 1; first < length; first += piece, piece = piece * 3 % 257 + 1) {
            const std::size_t elements = std::min(piece, length - first);
            std::vector<const void*> buffers;
            for (std::size_t worker = 0; worker < count; ++worker) {
                buffers.push_back(static_cast<const std::uint16_t*>(workers.gradients().buffers[worker]) + first);
            }
            const Gradients from{buffers.data(), count, Dtype::bfloat16, workers.gradients().scale};
            const std::size_t at = parts.begin() + first;
            REQUIRE(adamw_update(parts.master.data() + at, parts.m.data() + at, parts.v.data() + at,
                                 parts.low.data() + at, from, elements, kStep));
        }
        CHECK(parts.equals(whole));
        CHECK(same_bits(bare.master, whole.master));
        CHECK(bare.low[bare.begin()] == 0x5A5A);
    }
}

TEST_CASE("a gradient that is not finite is noticed at every place") {
    for (const InstructionSet set : available_sets()) {
        for (const std::size_t length : {1U, 63U, 64U, 130U, 200U}) {
            for (std::size_t place = 0; place < length; ++place) {
                std::vector<float> gradient(length, 0.5F);
                const std::vector<float> other(length, 0.25F);
                const void* const buffers[] = {gradient.data(), other.data()};
                for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
                    gradient[place] = bad;
                    State state(length, 0);
                    REQUIRE_FALSE(state.update(set, {buffers, 1, Dtype::float32, 1.0F}, length, kStep));
                    REQUIRE_FALSE(state.update(set, {buffers, 2, Dtype::float32, 0.5F}, length, kStep));
                }
                const std::uint16_t infinite = 0x7F80;
                std::vector<std::uint16_t> half(length, 0x3F00);
                half[place] = infinite;
                const void* const half_buffer = half.data();
                State state(length, 0);
                REQUIRE_FALSE(state.update(set, {&half_buffer, 1, Dtype::bfloat16, 1.0F}, length, kStep));
            }
        }
    }
}

TEST_CASE("only the scaled sum must be finite") {
    const std::vector<float> large(70, std::numeric_limits<float>::max());
    const void* const buffers[] = {large.data(), large.data()};
    State state(large.size(), 0);
    CHECK(state.update(best_instruction_set(), {buffers, 1, Dtype::float32, 1.0F}, large.size(), kStep));
    CHECK_FALSE(state.update(best_instruction_set(), {buffers, 2, Dtype::float32, 0.5F}, large.size(), kStep));
    CHECK_FALSE(state.update(best_instruction_set(), {buffers, 1, Dtype::float32, 2.0F}, large.size(), kStep));
}

}  // namespace luwu::kernels
