#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "aggregator.h"
#include "fabric/shm/endpoint.h"
#include "fabric/shm/shm_server.h"
#include "kernels/convert.h"
#include "network.h"

using namespace luwu;
using fabric::Endpoint;
using luwu::test::Scratch;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
const std::vector<pipeline::GroupSettings> kGroups{{0.01, 0.9, 0.999, 1e-8, 0.1}};

fabric::ServerSettings make_settings(const std::string& folder, std::uint32_t workers, std::uint64_t memory_bytes) {
    return test::server_settings(folder, kLow, workers, memory_bytes);
}

std::unique_ptr<Endpoint> join(const fabric::ShmServer& server, std::uint32_t rank, int liveness = -1) {
    const auto files = server.files_of(rank);
    return std::make_unique<Endpoint>(fabric::EndpointFiles{files[0], files[1], files[2], liveness}, rank,
                                      fabric::MapMode::private_copy);
}

std::int64_t finish(Endpoint& endpoint, fabric::Handle handle) {
    while (true) {
        if (const auto result = endpoint.wait(handle, std::chrono::milliseconds(1000))) return *result;
    }
}

void initialise(Endpoint& endpoint) {
    const auto shape = test::small_shape(kLow);
    for (std::uint32_t block = 0; block < shape.blocks.size(); ++block) {
        auto* values = reinterpret_cast<float*>(endpoint.arena());
        for (std::uint64_t i = 0; i < shape.blocks[block].elements; ++i) values[i] = test::first_value(block, i);
        finish(endpoint, endpoint.initialise(block, 0));
    }
    finish(endpoint, endpoint.finish_initialise());
}

// The same step as Rig's, through the rings, with a private in-place write to every pulled block.
void run_step(Endpoint& endpoint, std::uint32_t rank, std::uint64_t step) {
    const auto shape = test::small_shape(kLow);
    endpoint.begin(kGroups);
    const auto pull = [&](std::uint32_t block) {
        const auto offset = finish(endpoint, endpoint.pull(block));
        reinterpret_cast<std::uint16_t*>(endpoint.window() + offset)[5] = 0x7fc0;  // stays in this worker
    };
    const auto blocks = static_cast<std::uint32_t>(shape.blocks.size());
    for (std::uint32_t block = 0; block < blocks; ++block) {
        pull(block);
        endpoint.release(block);
    }
    for (std::uint32_t block = blocks; block-- > 0;) {
        pull(block);
        if (shape.blocks[block].trainable) {
            auto* gradient = reinterpret_cast<std::uint16_t*>(endpoint.arena());
            std::vector<float> values(shape.blocks[block].elements);
            for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = test::gradient_value(rank, step, block, i);
            kernels::float_to_low(kernels::Dtype::bfloat16, values.data(), gradient, values.size());
            finish(endpoint, endpoint.push(block, 0));
        }
        endpoint.release(block);
    }
    CHECK(finish(endpoint, endpoint.vote(false)) == 1);
}

}  // namespace

TEST_CASE("workers train through shared memory, bit for bit, and cannot hurt each other's parameters") {
    for (const std::uint32_t workers : {1U, 3U}) {
        for (const std::uint64_t memory : {test::Rig::minimum_bytes(kLow, workers), std::uint64_t{1} << 28}) {
            const Scratch scratch;
            const std::string folder = scratch.folder();
            {
                fabric::ShmServer server(make_settings(folder, workers, memory));
                std::vector<std::unique_ptr<Endpoint>> endpoints;
                for (std::uint32_t rank = 0; rank < workers; ++rank) endpoints.push_back(join(server, rank));
                initialise(*endpoints[0]);
                struct stat arena{};
                REQUIRE(fstat(server.files_of(0)[2], &arena) == 0);
                CHECK(arena.st_blocks == 0);  // first values are gone from memory
                CHECK(endpoints[0]->gradient_bytes() == server.plan().arena_bytes);
                std::vector<std::thread> threads;
                for (std::uint32_t rank = 0; rank < workers; ++rank) {
                    threads.emplace_back([&, rank] {
                        for (std::uint64_t step = 1; step <= 4; ++step) run_step(*endpoints[rank], rank, step);
                    });
                }
                for (std::thread& thread : threads) thread.join();
                CHECK(endpoints[0]->stats().bytes_pulled > 0);
            }
            CHECK(test::equal(test::stored_contents({folder}, kLow), test::expected_contents(kLow, workers, 4)));
        }
    }
}

TEST_CASE("a private copy shows what others write, and tells whether this process has written") {
    constexpr std::uint64_t kBytes = 4U << 20;
    const fabric::MemoryFile file("test", kBytes);
    const fabric::Mapping theirs(file.descriptor(), fabric::MapMode::shared);
    const fabric::Mapping mine(file.descriptor(), fabric::MapMode::private_copy);
    std::memset(theirs.data(), 1, kBytes);
    CHECK(mine.data()[kBytes - 1] == std::byte{1});  // now mapped here
    std::memset(theirs.data(), 2, kBytes);
    CHECK(mine.data()[kBytes - 1] == std::byte{2});
    CHECK_FALSE(mine.written(0, kBytes));
    CHECK_FALSE(theirs.written(0, kBytes));
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{3 << 20}, kBytes - 1}) {
        mine.data()[at] = std::byte{7};
        CHECK(mine.written(0, kBytes));
        CHECK_FALSE(mine.written(1U << 20, 1U << 20));
        mine.forget(0, kBytes);
        CHECK_FALSE(mine.written(0, kBytes));
        CHECK(mine.data()[at] == std::byte{2});
    }
}

TEST_CASE("what stays mapped of the window is bounded") {
    const auto shape = test::small_shape(kLow);
    for (const std::uint64_t most : {std::uint64_t{0}, std::uint64_t{100'000}, std::uint64_t{1} << 30}) {
        const Scratch scratch;
        const fabric::ShmServer server(make_settings(scratch.folder(), 1, std::uint64_t{1} << 28));
        const auto files = server.files_of(0);
        Endpoint endpoint({files[0], files[1], files[2], -1}, 0, fabric::MapMode::private_copy, most);
        initialise(endpoint);
        std::uint64_t all = 0;
        for (std::uint32_t round = 0; round < 2; ++round) {
            for (std::uint32_t block = 0; block < shape.blocks.size(); ++block) {
                finish(endpoint, endpoint.pull(block));
                if (round == 0) all += store::round_up(shape.blocks[block].elements * 2, store::kPage);
                endpoint.release(block);
                CHECK(endpoint.mapped_bytes() <= most);
            }
        }
        CHECK(endpoint.mapped_bytes() == (most > all ? all : endpoint.mapped_bytes()));
        if (most > 0) CHECK(endpoint.mapped_bytes() > 0);
    }
}

TEST_CASE("a worker that leaves while others go on fails the run") {
    const Scratch scratch;
    fabric::ShmServer server(make_settings(scratch.folder(), 2, 1U << 28));
    auto first = join(server, 0);
    auto second = join(server, 1);
    initialise(*first);
    const auto failure = [&](auto&& act) {
        try {
            act();
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::worker_lost);
            return std::string(error.what());
        }
        return std::string();
    };
    const std::string expected =
        "worker 1 left after step 0 and others went on; give every worker the same number of batches";
    SUBCASE("before they begin") {
        server.leave(1);
        first->begin(kGroups);
        CHECK(failure([&] { finish(*first, first->pull(0)); }) == expected);
    }
    SUBCASE("within their step") {
        first->begin(kGroups);
        const auto handle = first->vote(false);
        CHECK_FALSE(first->wait(handle, std::chrono::milliseconds(20)).has_value());
        server.leave(1);
        CHECK(failure([&] { finish(*first, handle); }) == expected);
    }
    SUBCASE("and a vote without a step is refused") {
        CHECK_THROWS_AS((void)finish(*second, second->vote(false)), Error);
    }
}

TEST_CASE("a worker that waits is told when the server fails or closes") {
    const Scratch scratch;
    auto server = std::make_unique<fabric::ShmServer>(make_settings(scratch.folder(), 2, 1U << 28));
    auto first = join(*server, 0);
    auto second = join(*server, 1);
    initialise(*first);
    first->begin(kGroups);
    const auto handle = first->vote(false);  // the second worker never votes
    CHECK_FALSE(first->wait(handle, std::chrono::milliseconds(20)).has_value());
    SUBCASE("a lost worker") {
        server->fail(Error(ErrorKind::worker_lost, "worker 1 is lost"));
        try {
            finish(*first, handle);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::worker_lost);
            CHECK(std::string(error.what()) == "worker 1 is lost");
        }
    }
    SUBCASE("a closed server") {
        server.reset();
        CHECK_THROWS_AS((void)finish(*first, handle), Error);
    }
    SUBCASE("requests that make no sense") {
        finish(*second, second->pull(0));
        CHECK_THROWS_AS(second->release(1), Error);
        CHECK_THROWS_AS((void)finish(*second, second->pull(99)), Error);
    }
}

TEST_CASE("a server process that is gone is noticed through the socket") {
    const Scratch scratch;
    const fabric::ShmServer server(make_settings(scratch.folder(), 2, 1U << 28));
    std::array<int, 2> sockets{};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
    auto endpoint = join(server, 0, sockets[0]);
    const auto handle = endpoint->vote(false);
    close(sockets[1]);
    CHECK_THROWS_AS((void)finish(*endpoint, handle), Error);
    close(sockets[0]);
}

TEST_CASE("a full ring waits for the server instead of overwriting") {
    const Scratch scratch;
    fabric::ShmServer server(make_settings(scratch.folder(), 1, 1U << 28));
    auto endpoint = join(server, 0);
    initialise(*endpoint);
    for (int i = 0; i < 2000; ++i) {
        finish(*endpoint, endpoint->pull(static_cast<std::uint32_t>(i % 7)));
        endpoint->release(static_cast<std::uint32_t>(i % 7));
    }
    CHECK(endpoint->stats().bytes_pulled > 0);
    CHECK_THROWS_AS((void)endpoint->register_buffer(endpoint->arena_bytes() + 1), Error);
    CHECK(endpoint->register_buffer(10) == 0);
    CHECK(endpoint->register_buffer(10) == store::kPage);
}

TEST_CASE("an aggregator gives every worker the mean, round after round") {
    constexpr std::uint32_t kWorkers = 4;
    constexpr std::uint64_t kElements = 100'003;
    const bench::Aggregator aggregator(kElements, kWorkers, 2);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
        threads.emplace_back([&, rank] {
            const auto files = aggregator.files_of(rank);
            Endpoint endpoint({files[0], files[1], files[2], -1}, rank, fabric::MapMode::private_copy);
            auto* gradient = reinterpret_cast<float*>(endpoint.arena());
            for (int round = 0; round < 20; ++round) {
                for (std::uint64_t i = 0; i < kElements; ++i) {
                    gradient[i] =
                        static_cast<float>(rank) + static_cast<float>((i + static_cast<std::uint64_t>(round)) % 64);
                }
                const auto pushed = endpoint.push(0, 0);
                const auto offset = finish(endpoint, endpoint.pull(0));
                const auto* mean = reinterpret_cast<const float*>(endpoint.window() + offset);
                for (std::uint64_t i = 0; i < kElements; ++i) {
                    wrong += mean[i] != 1.5F + static_cast<float>((i + static_cast<std::uint64_t>(round)) % 64);
                }
                endpoint.release(0);
                finish(endpoint, pushed);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK_THROWS_AS(bench::Aggregator(0, 1, 1), Error);
}
