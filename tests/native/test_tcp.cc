#include <doctest/doctest.h>

#include <thread>

#include "network.h"

using namespace luwu;
using fabric::Stream;
using luwu::test::Scratch;
using luwu::test::Trainee;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr auto kFull = kernels::Dtype::float32;

}  // namespace

TEST_CASE("workers train over TCP, bit for bit as one process would") {
    for (const auto dtype : {kLow, kFull}) {
        for (const std::uint32_t workers : {1U, 2U, 4U}) {
            for (const std::uint64_t memory : {test::Rig::minimum_bytes(dtype, workers), std::uint64_t{1} << 28}) {
                const Scratch scratch;
                {
                    auto server = test::start_server(test::server_settings(scratch.folder(), dtype, workers, memory));
                    auto all = test::join(*server, server->port(), workers);
                    CHECK(all[0]->endpoint().gradient_bytes() == server->core().memory().plan().arena_bytes);
                    all[0]->initialise();
                    test::train(all, 1, 4);
                    CHECK(all[0]->remote().stats().reconnects == 0);
                    CHECK(all[0]->remote().stats().bytes_received * workers == server->core().stats().bytes_pulled);
                }
                CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype),
                                  test::expected_contents(dtype, workers, 4)));
            }
        }
    }
}

TEST_CASE("a step that one worker rolls back leaves no trace") {
    const Scratch scratch;
    {
        auto server =
            test::start_server(test::server_settings(scratch.folder(), kLow, 2, test::Rig::minimum_bytes(kLow, 2)));
        auto all = test::join(*server, server->port(), 2);
        all[0]->initialise();
        test::train(all, 1, 2);
        std::thread other([&] { CHECK(all[1]->step(9, true) == 0); });
        CHECK(all[0]->step(9) == 0);
        other.join();
        test::train(all, 3, 3);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 2, 3)));
}

TEST_CASE("pulls and pushes do not wait for each other, and a released slot goes to whoever waits for one") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kFull, 1));
    test::Proxy proxy(server->port());
    Trainee worker(*server, test::tcp_worker_settings(*server, proxy.port(), 0));
    auto& endpoint = worker.endpoint();
    worker.initialise();
    server->core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    SUBCASE("a stalled pull") {
        proxy.stall(Stream::parameters, true);
        const auto pull = endpoint.pull(2);
        for (const std::uint32_t block : {6U, 5U, 4U, 3U, 1U}) test::finish(endpoint, worker.push(1, block));
        CHECK_FALSE(endpoint.done(pull));
        proxy.stall(Stream::parameters, false);
        test::finish(endpoint, pull);
    }
    SUBCASE("a stalled push") {
        proxy.stall(Stream::gradients, true);
        const auto push = worker.push(1, 6);
        for (std::uint32_t block = 0; block < 6; ++block) CHECK(worker.reads_first_values(block));
        CHECK_FALSE(endpoint.done(push));
        proxy.stall(Stream::gradients, false);
        test::finish(endpoint, push);
    }
    SUBCASE("more pulls than slots") {
        std::vector<fabric::Handle> pulls;
        for (std::uint32_t block = 1; block < 7; ++block) pulls.push_back(endpoint.pull(block));
        const auto root = endpoint.pull(0);  // has a place of its own
        pulls.push_back(endpoint.pull(7));
        for (std::uint32_t block = 1; block < 7; ++block) test::finish(endpoint, pulls[block - 1]);
        test::finish(endpoint, root);
        CHECK_FALSE(endpoint.wait(pulls[6], std::chrono::milliseconds(20)).has_value());
        for (std::uint32_t block = 1; block < 8; ++block) {
            if (block == 7) test::finish(endpoint, pulls[6]);
            test::finish(endpoint, endpoint.pull(block));  // held: at once, and released twice
            endpoint.release(block);
            endpoint.release(block);
        }
        CHECK(server->core().stats().pulls == 8);
    }
}

TEST_CASE("an IPv6 address does as well") {
    const Scratch scratch;
    auto tcp = test::tcp_settings();
    tcp.address = "::1";
    std::unique_ptr<fabric::TcpServer> server;
    try {
        server = test::start_server(test::server_settings(scratch.folder(), kLow, 1), tcp);
    } catch (const Error& error) {
        MESSAGE("SKIPPED: no IPv6 here: " << error.what());
        return;
    }
    auto settings = test::tcp_worker_settings(*server, server->port(), 0);
    settings.links[0].address = "::1";
    Trainee worker(*server, settings);
    worker.initialise();
    CHECK(worker.reads_first_values(3));
}

TEST_CASE("whoever waits is told why the server or this worker has failed") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 2));
    auto all = test::join(*server, server->port(), 2);
    all[0]->initialise();
    server->core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    const auto told = [&](auto&& act) { return std::string(test::failure_of(act).what()); };
    SUBCASE("a closed server") {
        server.reset();
        CHECK(told([&] { test::finish(all[0]->endpoint(), all[0]->endpoint().pull(1)); }) == "the server was closed");
        test::wait_until([&] { return all[1]->remote().failure().has_value(); });
        CHECK(all[1]->remote().failure()->kind() == ErrorKind::server);
    }
    SUBCASE("a lost worker") {
        // The second gradient waits for a buffer: the other worker has pushed none.
        test::finish(all[0]->endpoint(), all[0]->push(1, 6));
        test::finish(all[0]->endpoint(), all[0]->push(1, 5));
        const auto push = all[0]->push(1, 4);
        server->core().fail(Error(ErrorKind::worker_lost, "worker 1 is lost"));
        const Error error = test::failure_of([&] { test::finish(all[0]->endpoint(), push); });
        CHECK(error.kind() == ErrorKind::worker_lost);
        CHECK(std::string(error.what()) == "worker 1 is lost");
    }
    SUBCASE("what the control plane has to say") {
        all[0]->remote().fail(Error(ErrorKind::worker_lost, "worker 1 is lost"));
        all[0]->remote().fail(Error(ErrorKind::server, "later"));
        CHECK(told([&] { test::finish(all[0]->endpoint(), all[0]->endpoint().pull(1)); }) == "worker 1 is lost");
        CHECK_FALSE(server->core().failure().has_value());
    }
    SUBCASE("a worker that was closed") {
        all[0]->remote().close();
        CHECK_THROWS_AS(test::finish(all[0]->endpoint(), all[0]->push(1, 6)), Error);
    }
    SUBCASE("a worker whose place was given to another, and that hears the reason later") {
        server->allow_worker(0, test::token_of(0, 1));
        test::wait_until([&] { return server->dropped(fabric::Drop::token) > 0; });
        all[0]->remote().fail(Error(ErrorKind::worker_lost, "it made no progress"));
        CHECK(told([&] { test::finish(all[0]->endpoint(), all[0]->endpoint().pull(1)); }) == "it made no progress");
    }
    SUBCASE("requests that make no sense") {
        CHECK_THROWS_AS(test::finish(all[0]->endpoint(), all[0]->endpoint().pull(99)), Error);
        CHECK_THROWS_AS(test::finish(all[1]->endpoint(), all[1]->endpoint().vote(false)), Error);
    }
}

TEST_CASE("a worker whose place was given to another, and that hears no reason, is told of its token") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
    fabric::Timing timing = test::kTiming;
    timing.hello = std::chrono::milliseconds(300);
    auto all = test::join(*server, server->port(), 1, timing);
    all[0]->initialise();
    server->allow_worker(0, test::token_of(0, 1));
    const auto error = test::failure_of([&] { test::finish(all[0]->endpoint(), all[0]->endpoint().pull(1)); });
    CHECK(std::string(error.what()).find("its token is not what the server expects") != std::string::npos);
}

TEST_CASE("another worker takes the place of one that has left") {
    const Scratch scratch;
    {
        auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
        auto first = test::join(*server, server->port(), 1);
        first[0]->initialise();
        test::train(first, 1, 1);
        server->allow_worker(0, test::token_of(0, 1));
        auto settings = test::tcp_worker_settings(*server, server->port(), 0);
        const auto refused = test::failure_of([&] { Trainee(*server, settings); });
        CHECK(std::string(refused.what()).find("its token is not what the server expects") != std::string::npos);
        settings.links[0].token = test::token_of(0, 1);
        std::vector<std::unique_ptr<Trainee>> second;
        second.push_back(std::make_unique<Trainee>(*server, settings));
        test::train(second, 2, 3);
        CHECK_THROWS_AS(Trainee(*server, settings), Error);  // a token is for one worker
        CHECK_THROWS_AS(server->allow_worker(1, test::token_of(1)), Error);
        CHECK(server->dropped(fabric::Drop::token) >= 3);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 3)));
}
