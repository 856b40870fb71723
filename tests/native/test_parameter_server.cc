#include <doctest/doctest.h>

#include <future>
#include <thread>

#include "fabric/core/parameter_server.h"
#include "fabric/core/refusals.h"
#include "kernels/convert.h"
#include "network.h"

using namespace luwu;
using fabric::ParameterServer;
using luwu::test::Scratch;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
const std::vector<pipeline::GroupSettings> kGroups{{0.01, 0.9, 0.999, 1e-8, 0.1}};
constexpr std::chrono::milliseconds kLong{10'000};

fabric::ServerSettings make_settings(const std::string& folder, std::uint32_t workers) {
    return test::server_settings(folder, kLow, workers, std::uint64_t{1} << 28);
}

void initialise(ParameterServer& server) {
    for (std::uint32_t block = 0; block < server.layout().block_count(); ++block) {
        std::vector<float> values(server.layout().shape().blocks[block].elements);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = test::first_value(block, i);
        server.initialise(block, values.data());
    }
    server.finish_initialise();
}

// The sum over workers of one block's gradients, each rounded as its worker would.
std::vector<float> summed_gradient(std::uint32_t workers, std::uint64_t step, std::uint32_t block,
                                   std::uint64_t elements) {
    std::vector<float> sum(elements, 0.0F);
    std::vector<std::uint16_t> low(elements);
    std::vector<float> values(elements);
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
        for (std::uint64_t i = 0; i < elements; ++i) values[i] = test::gradient_value(worker, step, block, i);
        kernels::float_to_low(kernels::Dtype::bfloat16, values.data(), low.data(), elements);
        kernels::low_to_float(kernels::Dtype::bfloat16, low.data(), values.data(), elements);
        for (std::uint64_t i = 0; i < elements; ++i) sum[i] += values[i];
    }
    return sum;
}

}  // namespace

TEST_CASE("one fp32 sum of all workers' gradients updates bf16 parameters as the workers' own gradients do") {
    const Scratch scratch;
    {
        auto settings = make_settings(scratch.folder(), 1);
        settings.gradient_dtype = kernels::Dtype::float32;
        settings.gradient_scale = 0.5F;
        std::vector<std::vector<float>> gradients;
        ParameterServer server(settings, [](const Error&) {});
        initialise(server);
        std::uint64_t pushes = 0;
        for (std::uint64_t step = 1; step <= 3; ++step) {
            server.begin(0, kGroups);
            for (std::uint32_t block = server.layout().block_count(); block-- > 0;) {
                const store::BlockShape& shape = server.layout().shape().blocks[block];
                if (!shape.trainable) continue;
                CHECK(server.memory().gradient_bytes(block) == shape.elements * sizeof(float));
                gradients.push_back(summed_gradient(2, step, block, shape.elements));
                server.push(0, block, reinterpret_cast<const std::byte*>(gradients.back().data()),
                            [](pipeline::Outcome) {});
                ++pushes;
            }
            server.vote(0, false, pushes);
            CHECK(server.wait_for_end(0, kLong)->value == 1);
        }
        const auto plain = schedule::plan_residency(server.layout(), settings.memory_bytes, 1, settings.held);
        CHECK(server.memory().plan().arena_bytes > plain.arena_bytes);  // the budget counts fp32 gradients
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 2, 3)));
}

TEST_CASE("a trimmed mean needs enough workers, not too many, and a stream of each") {
    CHECK_NOTHROW(fabric::check_trims(0, 1, true));
    CHECK_NOTHROW(fabric::check_trims(1, 3, false));
    CHECK_NOTHROW(fabric::check_trims(31, 64, false));
    CHECK(test::kind_of([] { fabric::check_trims(1, 2, false); }, "more than 2 workers") == ErrorKind::invalid);
    CHECK(test::kind_of([] { fabric::check_trims(1, 65, false); }, "at most 64, found 65") == ErrorKind::invalid);
    CHECK(test::kind_of([] { fabric::check_trims(1, 3, true); }, "one sum") == ErrorKind::invalid);
}

TEST_CASE("a vote that overtakes its worker's pushes counts when they have come") {
    const Scratch scratch;
    const std::vector<std::byte> gradient(1 << 16);  // outlives the server
    ParameterServer server(make_settings(scratch.folder(), 1), [](const Error&) {});
    initialise(server);
    CHECK_THROWS_AS((void)server.wait_for_end(0, kLong), Error);
    for (std::uint64_t step = 1; step <= 2; ++step) {
        server.begin(0, kGroups);
        const auto trainable = static_cast<std::uint32_t>(server.layout().block_count() - 1);
        for (std::uint32_t block = 0; block < trainable; ++block) {
            if (block != 1) server.push(0, block, gradient.data(), [](pipeline::Outcome) {});
        }
        server.vote(0, step == 2, trainable * step);
        CHECK_THROWS_AS(server.vote(0, false, trainable * step), Error);
        CHECK_FALSE(server.wait_for_end(0, std::chrono::milliseconds(20)).has_value());
        server.push(0, 1, gradient.data(), [](pipeline::Outcome) {});
        CHECK(server.wait_for_end(0, kLong)->value == (step == 2 ? 0 : 1));
        CHECK(server.wait_for_end(0, kLong)->value == (step == 2 ? 0 : 1));
    }
    server.joined(0);
    CHECK_THROWS_AS((void)server.wait_for_end(0, kLong), Error);
    server.begin(0, kGroups);
    server.vote(0, true, 1);
    server.push(0, 1, gradient.data(), [](pipeline::Outcome) {});
    CHECK(server.wait_for_end(0, kLong)->value == 0);
    CHECK_THROWS_AS(server.begin(1, kGroups), Error);
    server.begin(0, kGroups);
    server.vote(0, false, 99);
    auto waiter = std::async(std::launch::async, [&] { (void)server.wait_for_end(0, kLong); });
    server.fail(Error(ErrorKind::worker_lost, "worker 3 is lost"));
    CHECK_THROWS_WITH_AS(waiter.get(), "worker 3 is lost", Error);
}

TEST_CASE("a read gives a block's parameters also after its worker pushed, and leaves the pass alone") {
    const Scratch scratch;
    const std::vector<std::byte> gradient(1 << 16);
    ParameterServer server(make_settings(scratch.folder(), 2), [](const Error&) {});
    initialise(server);
    server.begin(0, kGroups);
    server.push(0, 3, gradient.data(), [](pipeline::Outcome) {});
    std::promise<pipeline::Outcome> promise;
    server.read(3, [&](pipeline::Outcome outcome) { promise.set_value(outcome); });
    const pipeline::Outcome outcome = promise.get_future().get();
    REQUIRE(outcome.ok);
    std::vector<float> values(server.layout().shape().blocks[3].elements);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = test::first_value(3, i);
    std::vector<std::uint16_t> low(values.size());
    kernels::float_to_low(kernels::Dtype::bfloat16, values.data(), low.data(), low.size());
    CHECK(std::equal(low.begin(), low.end(),
                     reinterpret_cast<const std::uint16_t*>(server.memory().window() + outcome.value)));
    server.release(3);
    CHECK_FALSE(server.failure().has_value());
    server.pull(0, 3, [](pipeline::Outcome) {});
    CHECK(server.failure().has_value());
}
