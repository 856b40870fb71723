// Every optimizer against its definition in double precision, and every instruction set's version against every other,
// bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "kernel_support.h"
#include "kernels/optimizer.h"
#include "kernels/remainder.h"
#include "optimizer_references.h"

namespace luwu::kernels {

namespace {

// Master, states and the low-precision copy, with a margin on either side that no update may touch.
struct State {
    static constexpr std::size_t kMargin = 8;

    State(const Optimizer& optimizer_, std::size_t elements, std::size_t misalignment_,
          Dtype low_dtype_ = Dtype::bfloat16)
        : optimizer(&optimizer_),
          low_dtype(low_dtype_),
          misalignment(misalignment_),
          master(random_floats(kMargin + misalignment + elements + kMargin, 100)),
          low(master.size(), 0x5A5A) {
        for (std::uint32_t i = 0; i < optimizer->codes.size(); ++i) {
            // As second moments and sums of squares are, no state after the first is negative.
            states.push_back(random_floats(master.size(), 101 + i, i == 0 && optimizer->codes.size() == 2 ? -0.1F : 0,
                                           i == 0 ? 0.1F : 0.01F));
        }
    }

    [[nodiscard]] std::size_t begin() const { return kMargin + misalignment; }

    [[nodiscard]] Elements elements(bool writes_low = true) {
        Elements at{.master = master.data() + begin(),
                    .low = writes_low ? low.data() + begin() : nullptr,
                    .low_dtype = low_dtype};
        for (std::size_t i = 0; i < states.size(); ++i) at.states[i] = states[i].data() + begin();
        return at;
    }

    bool update(InstructionSet set, const Gradients& gradients, std::size_t count, const Step& step,
                bool writes_low = true) {
        return optimizer->update(set, elements(writes_low), gradients, count, step);
    }

    [[nodiscard]] bool equals(const State& other) const {
        return same_bits(master, other.master) && same_bits(low, other.low) &&
               std::equal(states.begin(), states.end(), other.states.begin(), other.states.end(), same_bits<float>);
    }

    const Optimizer* optimizer;
    Dtype low_dtype;
    std::size_t misalignment;
    std::vector<float> master;
    std::vector<std::vector<float>> states;
    std::vector<std::uint16_t> low;
};

bool near(double found, double expected) {
    return std::abs(found - expected) <= 1e-6 * std::max(1.0, std::abs(expected));
}

void check_against_reference(const test::OptimizerCase& by, const State& found, const State& before,
                             const Workers& workers, std::size_t elements) {
    for (std::size_t i = 0; i < elements; ++i) {
        const std::size_t at = before.begin() + i;
        double master = before.master[at];
        std::array<double, kMaximumStates> states{};
        for (std::size_t k = 0; k < before.states.size(); ++k) states[k] = before.states[k][at];
        by.reference(master, states, workers.sum(i), by.settings, by.t);
        REQUIRE(near(found.master[at], master));
        for (std::size_t k = 0; k < before.states.size(); ++k) REQUIRE(near(found.states[k][at], states[k]));
        REQUIRE(found.low[at] == reference_low(found.low_dtype, found.master[at]));
    }
}

// Calls with every case of every optimizer, and the constants of its step.
void for_each_case(const std::function<void(const test::OptimizerCase&, const Optimizer&, const Step&)>& check) {
    for (const test::OptimizerCase& by : test::optimizer_cases()) {
        const Optimizer* const optimizer = find_optimizer(by.optimizer);
        REQUIRE(optimizer != nullptr);
        CAPTURE(std::string(by.optimizer));
        CAPTURE(by.t);
        check(by, *optimizer, optimizer->prepare(by.settings, by.t));
    }
}

}  // namespace

TEST_CASE("every optimizer has a name, a number and a reference of its own") {
    for (const Optimizer* const one : kOptimizers) {
        CHECK(find_optimizer(one->name) == one);
        CHECK(one->codes.size() >= 1);
        CHECK(one->codes.size() <= kMaximumStates);
        CHECK(one->hyper_parameters <= kHyperParameters);
        const auto same_number = [one](const Optimizer* other) { return other->number == one->number; };
        CHECK(std::ranges::count_if(kOptimizers, same_number) == 1);
        const auto of_this = [one](const test::OptimizerCase& by) { return std::string(by.optimizer) == one->name; };
        CHECK(std::ranges::any_of(test::optimizer_cases(), of_this));
    }
    CHECK(find_optimizer("none") == nullptr);
    CHECK(find_optimizer("adamw")->number == 0);  // files from before there was a choice
}

TEST_CASE("optimizers agree with double precision, and all instruction sets with each other") {
    for_each_case([](const test::OptimizerCase& by, const Optimizer& optimizer, const Step& step) {
        for (const Dtype dtype : kDtypesToTest) {
            for (std::size_t length = 0; length <= kLongest; ++length) {
                const std::size_t misalignment = length % kMisalignments;
                const Workers workers(1 + length % 5, dtype, length, misalignment);
                const bool low_is_half = dtype == Dtype::float16 || (dtype == Dtype::float32 && length % 2 == 1);
                const State before(optimizer, length, misalignment, low_is_half ? Dtype::float16 : Dtype::bfloat16);
                State base = before;
                REQUIRE(base.update(InstructionSet::base, workers.gradients(), length, step));
                check_against_reference(by, base, before, workers, length);
                for (const InstructionSet set : available_sets()) {
                    State other = before;
                    REQUIRE(other.update(set, workers.gradients(), length, step));
                    REQUIRE(other.equals(base));  // the margins too
                }
            }
        }
    });
}

TEST_CASE("a master in halves gets the bits of a whole one, on every instruction set") {
    for_each_case([](const test::OptimizerCase&, const Optimizer& optimizer, const Step& step) {
        for (const Dtype dtype : kDtypesToTest) {
            for (std::size_t length = 0; length <= kLongest; length += 1 + length / 8) {
                const std::size_t misalignment = length % kMisalignments;
                const Workers workers(1 + length % 5, dtype, length, misalignment);
                const State before(optimizer, length, misalignment);
                State whole = before;
                REQUIRE(whole.update(InstructionSet::base, workers.gradients(), length, step, false));
                for (const InstructionSet set : available_sets()) {
                    State halves = before;
                    std::vector<std::uint16_t> remainder(halves.master.size());
                    split_master(halves.master.data(), halves.low.data(), remainder.data(), remainder.size());
                    Elements at = halves.elements();
                    at.master = nullptr;
                    at.remainder = remainder.data() + halves.begin();
                    REQUIRE(optimizer.update(set, at, workers.gradients(), length, step));
                    join_master(halves.low.data(), remainder.data(), halves.master.data(), remainder.size());
                    REQUIRE(same_bits(halves.master, whole.master));  // the margins too
                    REQUIRE(std::equal(halves.states.begin(), halves.states.end(), whole.states.begin(),
                                       whole.states.end(), same_bits<float>));
                }
            }
        }
    });
}

TEST_CASE("optimizers give the same bits in one piece and in many, with and without a copy") {
    constexpr std::size_t length = 5000;
    for_each_case([](const test::OptimizerCase&, const Optimizer& optimizer, const Step& step) {
        using Case = std::pair<std::size_t, Dtype>;
        for (const auto& [count, dtype] : {Case(1, Dtype::bfloat16), Case(2, Dtype::bfloat16), Case(5, Dtype::bfloat16),
                                           Case(1, Dtype::float16), Case(2, Dtype::float16)}) {
            const Workers workers(count, dtype, length, 0);
            State whole(optimizer, length, 0, dtype);
            State parts = whole;
            State bare = whole;
            REQUIRE(whole.update(best_instruction_set(), workers.gradients(), length, step));
            REQUIRE(bare.update(best_instruction_set(), workers.gradients(), length, step, false));
            for (std::size_t first = 0, piece = 1; first < length; first += piece, piece = piece * 3 % 257 + 1) {
                const std::size_t elements = std::min(piece, length - first);
                std::vector<const void*> buffers;
                for (std::size_t worker = 0; worker < count; ++worker) {
                    buffers.push_back(static_cast<const std::uint16_t*>(workers.gradients().buffers[worker]) + first);
                }
                const Gradients from{buffers.data(), count, dtype, workers.gradients().scale};
                REQUIRE(optimizer.update(best_instruction_set(), parts.elements().from(first), from, elements, step));
            }
            CHECK(parts.equals(whole));
            CHECK(same_bits(bare.master, whole.master));
            CHECK(bare.low[bare.begin()] == 0x5A5A);
        }
    });
}

TEST_CASE("a gradient that is not finite is noticed at every place") {
    for_each_case([](const test::OptimizerCase&, const Optimizer& optimizer, const Step& step) {
        for (const InstructionSet set : available_sets()) {
            for (const std::size_t length : {1U, 63U, 64U, 130U}) {
                for (std::size_t place = 0; place < length; ++place) {
                    std::vector<float> gradient(length, 0.5F);
                    const std::vector<float> other(length, 0.25F);
                    const void* const buffers[] = {gradient.data(), other.data()};
                    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
                        gradient[place] = bad;
                        State state(optimizer, length, 0);
                        REQUIRE_FALSE(state.update(set, {buffers, 1, Dtype::float32, 1.0F}, length, step));
                        REQUIRE_FALSE(state.update(set, {buffers, 2, Dtype::float32, 0.5F}, length, step));
                    }
                    std::vector<std::uint16_t> half(length, 0x3F00);
                    half[place] = 0x7F80;  // infinite
                    const void* const half_buffer = half.data();
                    State state(optimizer, length, 0);
                    REQUIRE_FALSE(state.update(set, {&half_buffer, 1, Dtype::bfloat16, 1.0F}, length, step));
                    half[place] = 0x7C00;
                    state = State(optimizer, length, 0);
                    REQUIRE_FALSE(state.update(set, {&half_buffer, 1, Dtype::float16, 1.0F}, length, step));
                }
            }
        }
    });
}

TEST_CASE("only the scaled sum must be finite") {
    const Step step = adamw.prepare({1e-2, 0.9, 0.999, 1e-8, 0.1}, 3);
    const std::vector<float> large(70, std::numeric_limits<float>::max());
    const void* const buffers[] = {large.data(), large.data()};
    State state(adamw, large.size(), 0);
    CHECK(state.update(best_instruction_set(), {buffers, 1, Dtype::float32, 1.0F}, large.size(), step));
    CHECK_FALSE(state.update(best_instruction_set(), {buffers, 2, Dtype::float32, 0.5F}, large.size(), step));
    CHECK_FALSE(state.update(best_instruction_set(), {buffers, 1, Dtype::float32, 2.0F}, large.size(), step));
}

}  // namespace luwu::kernels
