// Kernels give the same bits on every architecture: a store may move from one to another, and a run on both is the run
// on one. The checksums were taken on x86-64; tools/aarch64_tests.sh runs this on AArch64.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/convert.h"
#include "kernels/crc32c.h"
#include "kernels/fixed_point.h"
#include "kernels/keep.h"
#include "kernels/optimizer.h"
#include "kernels/remainder.h"
#include "kernels/state_code.h"
#include "kernels/sum.h"
#include "kernels/weighted_sum.h"
#include "optimizer_references.h"

namespace luwu::kernels {

namespace {

constexpr std::size_t kElements = 5000;  // no multiple of a group, a cell or a register

// From -1 to 1. The standard's distributions differ from library to library; its generators do not.
std::vector<float> values(std::uint32_t seed, float scale = 1.0F) {
    std::mt19937 generator(seed);
    std::vector<float> all(kElements);
    for (float& value : all) value = scale * (static_cast<float>(generator() >> 8) * 0x1p-23F - 1.0F);
    return all;
}

template <class Element>
std::uint32_t checksum(const std::vector<Element>& all, std::uint32_t before = 0) {
    return crc32c(before, all.data(), all.size() * sizeof(Element));
}

// Gradients of three workers in one dtype.
class ThreeWorkers {
  public:
    explicit ThreeWorkers(Dtype dtype) : dtype_(dtype) {
        for (std::uint32_t worker = 0; worker < 3; ++worker) {
            floats_.push_back(values(10 + worker, 0.1F));
            if (dtype == Dtype::float32) {
                buffers_[worker] = floats_[worker].data();
                continue;
            }
            halves_.emplace_back(kElements);
            float_to_low(dtype, floats_[worker].data(), halves_[worker].data(), kElements);
            buffers_[worker] = halves_[worker].data();
        }
    }

    [[nodiscard]] Gradients gradients() const { return {buffers_.data(), buffers_.size(), dtype_, 1.0F / 3.0F}; }

  private:
    Dtype dtype_;
    std::vector<std::vector<float>> floats_;
    std::vector<std::vector<std::uint16_t>> halves_;
    std::array<const void*, 3> buffers_{};
};

// Four steps of one optimizer: the checksum of master, copy and states.
std::uint32_t steps_of(const test::OptimizerCase& by) {
    const Optimizer& optimizer = *find_optimizer(by.optimizer);
    std::vector<float> master = values(1);
    std::vector<std::uint16_t> low(kElements);
    std::vector<std::vector<float>> states(optimizer.codes.size(), std::vector<float>(kElements));
    Elements at{.master = master.data(), .low = low.data()};
    for (std::size_t i = 0; i < states.size(); ++i) at.states[i] = states[i].data();
    std::uint64_t t = by.t;
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float32}) {
        const ThreeWorkers workers(dtype);
        const Step step = optimizer.prepare(by.settings, t++);
        REQUIRE(optimizer.update(best_instruction_set(), at, workers.gradients(), kElements, step));
    }
    std::uint32_t found = checksum(low, checksum(master));
    for (const std::vector<float>& state : states) found = checksum(state, found);
    return found;
}

// Encoded for 5 workers, and decoded again.
std::uint32_t fixed_point(FixedForm form) {
    const std::vector<float> from = values(2, 1e-3F);
    std::vector<std::uint8_t> exponents(fixed_groups(kElements));
    fixed_exponents(from.data(), Dtype::float32, kElements, exponents.data());
    std::vector<std::byte> mantissas(kElements * size_of(form));
    fixed_encode(from.data(), Dtype::float32, kElements, exponents.data(), form, 5, mantissas.data());
    std::vector<float> again(kElements);
    fixed_decode(mantissas.data(), form, kElements, exponents.data(), 5, again.data());
    return checksum(again, checksum(mantissas, checksum(exponents)));
}

std::uint32_t state_code(StateCode code) {
    std::vector<float> all = values(3, 1e-2F);
    if (code == StateCode::root_8bit) {
        for (float& value : all) value *= value;
    }
    std::vector<std::byte> plane(plane_bytes(code, kElements));
    encode(code, all.data(), plane.data(), kElements, 7);
    std::vector<float> again(kElements);
    decode(code, plane.data(), again.data(), kElements);
    return checksum(again, checksum(plane));
}

std::uint32_t conversions(Dtype dtype) {
    const std::vector<float> from = values(4, dtype == Dtype::float16 ? 1e-4F : 1.0F);  // some without all their bits
    std::vector<std::uint16_t> low(kElements);
    float_to_low(dtype, from.data(), low.data(), kElements);
    std::vector<float> again(kElements);
    low_to_float(dtype, low.data(), again.data(), kElements);
    return checksum(again, checksum(low));
}

std::uint32_t remainders() {
    const std::vector<float> master = values(5);
    std::vector<std::uint16_t> copy(kElements);
    std::vector<std::uint16_t> rest(kElements);
    split_master(master.data(), copy.data(), rest.data(), kElements);
    return checksum(rest, checksum(copy));
}

std::uint32_t sums(Dtype dtype) {
    const ThreeWorkers workers(dtype);
    std::vector<float> sum(kElements);
    sum_gradients(sum.data(), workers.gradients(), kElements);
    std::vector<float> kept(kElements);
    const std::vector<double> squares{keep_gradients(kept.data(), workers.gradients(), kElements)};
    return checksum(squares, checksum(kept, checksum(sum)));
}

std::uint32_t weighted(FixedForm form) {
    const std::vector<float> all = values(6);
    const Weights weights(12345, kElements * sizeof(float) / size_of(form));
    return checksum(std::vector{weighted_sum(weights.data(), all.data(), kElements * sizeof(float), form)});
}

}  // namespace

TEST_CASE("an optimizer gives the same bits on every architecture") {
    constexpr std::array<std::uint32_t, 11> kExpected{0xb48c4d9aU, 0xf9f882dfU, 0xb48c4d9aU, 0xec290a45U,
                                                      0x303327b0U, 0xc64c86b8U, 0x2573e8d4U, 0x5a0df4edU,
                                                      0xedc1d016U, 0x5acd238fU, 0x2132916cU};
    REQUIRE(test::optimizer_cases().size() == kExpected.size());
    for (std::size_t i = 0; i < kExpected.size(); ++i) {
        const test::OptimizerCase& by = test::optimizer_cases()[i];
        CAPTURE(std::string(by.optimizer));
        CAPTURE(by.t);
        CHECK(steps_of(by) == kExpected[i]);
    }
}

TEST_CASE("codes, sums and conversions give the same bits on every architecture") {
    CHECK(fixed_point(FixedForm::int16) == 0x21cd4a92U);
    CHECK(fixed_point(FixedForm::int32) == 0x006392a8U);
    CHECK(state_code(StateCode::signed_8bit) == 0x8c3ca758U);
    CHECK(state_code(StateCode::root_8bit) == 0x0411a456U);
    CHECK(conversions(Dtype::bfloat16) == 0xd0222cdbU);
    CHECK(conversions(Dtype::float16) == 0xb8f441b5U);
    CHECK(remainders() == 0x628c6cfbU);
    CHECK(sums(Dtype::float32) == 0x8f176af3U);
    CHECK(sums(Dtype::bfloat16) == 0xe9092ef6U);
    CHECK(sums(Dtype::float16) == 0xe513818dU);
    CHECK(weighted(FixedForm::int16) == 0xfe0f243aU);
    CHECK(weighted(FixedForm::int32) == 0x9eb74e70U);
}

}  // namespace luwu::kernels
