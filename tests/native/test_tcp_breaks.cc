// Links that break, lie and stall: nothing is lost, and nothing counts twice.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "fabric/tcp/tcp_lane.h"
#include "network.h"

using namespace luwu;
using fabric::Stream;
using luwu::test::Scratch;
using luwu::test::Trainee;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr auto kFull = kernels::Dtype::float32;

// A port of this machine that refuses connections while it is held.
class RefusingPort {
  public:
    RefusingPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address);
        REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
        REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
        number = ntohs(address.sin_port);
    }
    ~RefusingPort() { ::close(socket_); }
    RefusingPort(const RefusingPort&) = delete;
    RefusingPort& operator=(const RefusingPort&) = delete;

    std::uint16_t number = 0;

  private:
    int socket_;
};

}  // namespace

TEST_CASE("a lane that gives up tells the reason before any request fails") {
    using std::chrono::milliseconds;
    const RefusingPort port;
    fabric::TcpLinkSettings settings;
    settings.address = "127.0.0.1";
    settings.port = port.number;
    settings.timing = {.hello = milliseconds(1000),
                       .silence = milliseconds(1000),
                       .reconnect = milliseconds(0),
                       .backoff = milliseconds(1),
                       .longest_backoff = milliseconds(1),
                       .farewell = milliseconds(1)};
    std::optional<fabric::TcpLane> lane;
    std::optional<bool> outcome;
    bool told = false;
    lane.emplace(settings, nullptr, Stream::parameters, 1, [&](const Error&) {
        lane->post({fabric::FrameKind::pull, 0, {}, {}, [&](bool ok) {
                        CHECK(told);
                        outcome = ok;
                    }});
        told = true;
    });
    lane->start();
    CHECK(lane->wait_connected(fabric::Clock::now() + std::chrono::seconds(30)));
    lane->stop();
    CHECK(outcome == false);
}

TEST_CASE("a link that breaks in the middle of every few frames costs nothing") {
    for (const auto dtype : {kLow, kFull}) {
        // Within a push or the first values, within a pull, and within both.
        for (const auto& [up, down] : {std::pair{20'123ULL, ~0ULL}, {~0ULL, 20'123ULL}, {31'000ULL, 18'000ULL}}) {
            const Scratch scratch;
            {
                auto server = test::start_server(
                    test::server_settings(scratch.folder(), dtype, 2, test::Rig::minimum_bytes(dtype, 2)));
                test::Proxy proxy(server->port());
                proxy.cut_after(up, down);
                auto all = test::join(*server, proxy.port(), 2);
                all[0]->initialise();
                test::train(all, 1, 3);
                CHECK(proxy.cuts() > 5);
                CHECK(all[1]->remote().stats().reconnects > 2);
                CHECK(all[0]->pushes == 21);
            }
            CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype), test::expected_contents(dtype, 2, 3)));
        }
    }
}

TEST_CASE("what is damaged on the way is sent again") {
    const Scratch scratch;
    {
        auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
        test::Proxy proxy(server->port());
        auto all = test::join(*server, proxy.port(), 1);
        all[0]->initialise();
        proxy.cut();
        proxy.damage_at(20'123, ~0ULL);
        test::train(all, 1, 1);
        CHECK(server->dropped(fabric::Drop::checksum) > 1);
        proxy.cut();
        proxy.damage_at(~0ULL, 20'123);
        test::train(all, 2, 2);
        CHECK(all[0]->remote().stats().reconnects > 3);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 2)));
}

TEST_CASE("an answer that is lost is not a push that is lost, nor one that counts twice") {
    const Scratch scratch;
    {
        auto server = test::start_server(test::server_settings(scratch.folder(), kFull, 1));
        test::Proxy proxy(server->port());
        auto all = test::join(*server, proxy.port(), 1);
        all[0]->initialise();
        server->core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        for (std::uint32_t block = 7; block-- > 0;) {
            const std::uint64_t before = server->core().stats().bytes_pushed;
            proxy.cut_after(~0ULL, 0);  // whatever the server says from here on is not heard
            const auto push = all[0]->push(1, block);
            test::wait_until([&] { return server->core().stats().bytes_pushed > before; });
            CHECK_FALSE(all[0]->endpoint().done(push));
            proxy.cut_after(~0ULL, ~0ULL);
            test::finish(all[0]->endpoint(), push);
        }
        server->core().vote(0, false, all[0]->pushes);
        CHECK(server->core().wait_for_end(0, std::chrono::seconds(20))->value == 1);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kFull), test::expected_contents(kFull, 1, 1)));
}

TEST_CASE("a link that is cut for a while is made again; for too long, and the worker is told where and when") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
    test::Proxy proxy(server->port());
    fabric::Timing timing = test::kTiming;
    timing.reconnect = std::chrono::milliseconds(1500);
    auto all = test::join(*server, proxy.port(), 1, timing);
    all[0]->initialise();
    const auto broken_for = [&] { return all[0]->remote().broken_for()[0].count(); };
    CHECK(broken_for() == 0);
    proxy.refuse(true);
    proxy.cut();
    const auto pull = all[0]->endpoint().pull(1);
    CHECK_FALSE(all[0]->endpoint().wait(pull, std::chrono::milliseconds(300)).has_value());
    CHECK(broken_for() > 0);
    SUBCASE("a while") {
        proxy.refuse(false);
        test::finish(all[0]->endpoint(), pull);
        all[0]->endpoint().release(1);
        test::train(all, 1, 2);
        CHECK(broken_for() == 0);
    }
    SUBCASE("too long") {
        const Error error = test::failure_of([&] { test::finish(all[0]->endpoint(), pull); });
        CHECK(error.kind() == ErrorKind::server);
        const std::string text = error.what();
        CHECK(text.find("127.0.0.1:" + std::to_string(proxy.port())) != std::string::npos);
        CHECK(text.find("1.500 seconds") != std::string::npos);
        CHECK(broken_for() > 0);  // it did not come back
        CHECK_THROWS_AS(test::finish(all[0]->endpoint(), all[0]->endpoint().pull(2)), Error);
    }
}

TEST_CASE("a connection whose packets are lost is silent before it is broken") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
    test::Proxy proxy(server->port());
    auto all = test::join(*server, proxy.port(), 1);
    all[0]->initialise();
    const auto silent_for = [&] { return all[0]->remote().silent_for()[0]; };
    test::wait_until([&] { return silent_for().count() == 0; });
    proxy.deafen(true);
    const auto pull = all[0]->endpoint().pull(1);
    test::wait_until([&] { return silent_for() >= std::chrono::milliseconds(300); });
    CHECK(all[0]->remote().broken_for()[0].count() == 0);
    proxy.deafen(false);
    test::finish(all[0]->endpoint(), pull);
    test::wait_until([&] { return silent_for().count() == 0; });
    CHECK(all[0]->remote().stats().reconnects == 0);
}

TEST_CASE("a connection that was made again is there when it has lasted, and its next break is a new one") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
    test::Proxy proxy(server->port());
    auto all = test::join(*server, proxy.port(), 1);
    all[0]->initialise();
    const auto broken_for = [&] { return all[0]->remote().broken_for()[0]; };
    proxy.cut();
    test::wait_until([&] { return broken_for().count() > 0; });
    test::wait_until([&] { return broken_for().count() == 0; });
    proxy.refuse(true);
    const auto before = fabric::Clock::now();
    proxy.cut();
    test::wait_until([&] { return broken_for().count() > 0; });
    CHECK(broken_for() <= fabric::Clock::now() - before);
}

TEST_CASE("a server that ends each connection after its welcome is not back until it has answered") {
    const Scratch scratch;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1));
    test::Proxy proxy(server->port());
    fabric::Timing timing = test::kTiming;
    timing.longest_backoff = std::chrono::hours(1);
    auto all = test::join(*server, proxy.port(), 1, timing);
    all[0]->initialise();
    const auto broken_for = [&] { return all[0]->remote().broken_for()[0].count(); };
    proxy.cut_after(~0ULL, fabric::kFrameBytes + 1);
    const auto pull = all[0]->endpoint().pull(1);
    test::wait_until([&] { return broken_for() > 0; });
    const std::uint64_t cuts = proxy.cuts();
    bool back = false;
    test::wait_until([&] {
        back = back || broken_for() == 0;
        return proxy.cuts() > cuts + 20;
    });
    CHECK_FALSE(back);
    proxy.cut_after(~0ULL, ~0ULL);
    test::finish(all[0]->endpoint(), pull);
    all[0]->endpoint().release(1);
    test::train(all, 1, 1);
    CHECK(broken_for() == 0);
}

TEST_CASE("a pull that is answered after its connection broke keeps no place in the server's window") {
    const Scratch scratch;
    auto server =
        test::start_server(test::server_settings(scratch.folder(), kLow, 1, test::Rig::minimum_bytes(kLow, 1)));
    test::Proxy proxy(server->port());
    Trainee worker(*server, test::tcp_worker_settings(*server, proxy.port(), 0));
    worker.initialise();
    auto& core = server->core();
    const std::uint32_t slots = core.memory().plan().slots;
    REQUIRE(slots == 6);
    const auto read_all = [&] {  // one block for every slot
        std::atomic<std::uint32_t> answered{0};
        for (std::uint32_t block = 1; block <= slots; ++block) core.read(block, [&](pipeline::Outcome) { ++answered; });
        test::wait_until([&] { return answered == slots; });
    };
    read_all();
    const auto pull = worker.endpoint().pull(7);
    test::wait_until([&] { return core.stats().pulls == slots + 1; });
    proxy.cut();
    test::wait_until([&] { return core.stats().pulls == slots + 2; });  // asked for again
    for (std::uint32_t block = 1; block <= slots; ++block) core.release(block);
    test::finish(worker.endpoint(), pull);
    worker.endpoint().release(7);
    read_all();
}
