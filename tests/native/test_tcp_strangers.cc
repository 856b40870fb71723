// Bytes that come to the port from elsewhere, or from a worker gone mad: dropped and counted, nothing else.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "fuzz.h"
#include "kernels/crc32c.h"
#include "network.h"

using namespace luwu;
using fabric::Drop;
using fabric::Frame;
using fabric::FrameKind;
using fabric::Stream;
using luwu::test::Scratch;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr std::uint64_t kPushBytes = 4100 * 2;  // of block 1

// A peer that sends what it likes.
class Peer {
  public:
    explicit Peer(const fabric::TcpServer& server)
        : socket_(
              fabric::connect_to("127.0.0.1", server.port(), bell_, fabric::Clock::now() + std::chrono::seconds(10))) {}

    template <typename Bytes>
    Peer& send(const Bytes& bytes) {
        (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may be closed by now
        return *this;
    }
    // Bytes of the server until it closes.
    std::vector<std::byte> until_closed() {
        std::vector<std::byte> all;
        std::array<std::byte, 4096> bytes{};
        while (true) {
            pollfd entry{socket_.get(), POLLIN, 0};
            REQUIRE(poll(&entry, 1, 20'000) == 1);
            const auto count = recv(socket_.get(), bytes.data(), bytes.size(), 0);
            if (count <= 0) return all;
            all.insert(all.end(), bytes.begin(), bytes.begin() + count);
        }
    }
    void end_writing() { shutdown(socket_.get(), SHUT_WR); }

  private:
    fabric::Bell bell_;
    fabric::Descriptor socket_;
};

fabric::Hello good_hello(Stream stream = Stream::parameters) {
    return {stream, test::kJob, 77, 0, 1, test::token_of(0)};
}

template <typename Bytes>
void seal(Bytes& bytes, std::size_t at) {
    const std::uint32_t crc = kernels::crc32c(0, bytes.data(), at);
    std::memcpy(&bytes[at], &crc, sizeof crc);
}

std::unique_ptr<fabric::TcpServer> fresh_server(const Scratch& scratch, const fabric::Timing& timing = test::kTiming) {
    return test::start_server(test::server_settings(scratch.folder(), kLow, 1), test::tcp_settings(timing));
}

// The server is as good as new: a worker trains, and the store has the bits that it should.
void check_sound(std::unique_ptr<fabric::TcpServer> server, const Scratch& scratch) {
    server->allow_worker(0, test::token_of(0));
    std::vector<std::unique_ptr<test::Trainee>> workers;
    workers.push_back(std::make_unique<test::Trainee>(*server, test::tcp_worker_settings(*server, server->port(), 0)));
    if (!server->core().initialised()) workers[0]->initialise();
    test::train(workers, 1, 2);
    workers.clear();
    server.reset();
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 2)));
}

}  // namespace

TEST_CASE("a hello that is not this job's is refused, and counted by what is wrong with it") {
    const Scratch scratch;
    auto server = fresh_server(scratch);
    const auto try_hello = [&](Drop reason, const auto& bytes, bool told = true) {
        const std::uint64_t before = server->dropped(reason);
        const auto answer = Peer(*server).send(bytes).until_closed();
        test::wait_until([&] { return server->dropped(reason) == before + 1; });
        REQUIRE(answer.size() == (told ? fabric::kFrameBytes : 0));
        if (!told) return;
        const Frame frame = fabric::decode_frame(std::span<const std::byte, fabric::kFrameBytes>(answer));
        CHECK(frame.kind == FrameKind::refused);
        CHECK(static_cast<Drop>(frame.block) == reason);
    };
    const auto changed = [](auto&& change) {
        fabric::Hello hello = good_hello();
        change(hello);
        return fabric::encode(hello);
    };
    try_hello(Drop::job, changed([](auto& hello) { ++hello.job; }));
    try_hello(Drop::rank, changed([](auto& hello) { hello.rank = 1; }));
    try_hello(Drop::rank, changed([](auto& hello) { hello.workers = 2; }));
    try_hello(Drop::token, changed([](auto& hello) { hello.token[31] ^= std::byte{1}; }));
    try_hello(Drop::token, changed([](auto& hello) { hello.incarnation = 0; }));
    auto bytes = fabric::encode(good_hello());
    bytes[8] = std::byte{2};
    try_hello(Drop::version, bytes);
    bytes = fabric::encode(good_hello());
    bytes[0] ^= std::byte{1};
    try_hello(Drop::stranger, bytes, false);
    bytes = fabric::encode(good_hello());
    bytes[20] ^= std::byte{1};
    try_hello(Drop::checksum, bytes, false);
    bytes = fabric::encode(good_hello());
    bytes[12] = std::byte{2};
    seal(bytes, 76);
    try_hello(Drop::malformed, bytes, false);
    Peer cut(*server);
    cut.send(std::span(bytes).first(40)).end_writing();
    cut.until_closed();
    test::wait_until([&] { return server->dropped(Drop::closed) == 1; });
    check_sound(std::move(server), scratch);
}

TEST_CASE("a hello that is refused takes no thread") {
    const Scratch scratch;
    auto settings = test::tcp_settings();
    settings.most_greeting = 0;  // no connection gets a thread
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1), settings);
    server->allow_worker(0, test::token_of(0));
    CHECK(Peer(*server).send(fabric::encode(good_hello())).until_closed().empty());
    CHECK(server->dropped(Drop::crowded) == 1);
    fabric::Hello hello = good_hello();
    hello.token[31] ^= std::byte{1};
    CHECK(Peer(*server).send(fabric::encode(hello)).until_closed().size() == fabric::kFrameBytes);
    CHECK(server->dropped(Drop::token) == 1);
    CHECK(server->dropped(Drop::crowded) == 1);
}

TEST_CASE("a hello that does not come is waited for so long, and by so many") {
    const Scratch scratch;
    fabric::Timing timing = test::kTiming;
    timing.hello = std::chrono::milliseconds(300);
    auto settings = test::tcp_settings(timing);
    settings.most_silent = 4;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1), settings);
    std::vector<std::unique_ptr<Peer>> peers;
    for (int i = 0; i < 12; ++i) peers.push_back(std::make_unique<Peer>(*server));
    for (const auto& peer : peers) CHECK(peer->until_closed().empty());
    test::wait_until([&] { return server->dropped(Drop::timeout) + server->dropped(Drop::crowded) == 12; });
    CHECK(server->dropped(Drop::timeout) >= 4);
    CHECK(server->dropped(Drop::crowded) >= 1);
    check_sound(std::move(server), scratch);
}

TEST_CASE("strangers who hold all places displace each other, and a worker comes in") {
    const Scratch scratch;
    fabric::Timing timing = test::kTiming;
    timing.hello = std::chrono::hours(1);  // no stranger is closed for its silence
    auto settings = test::tcp_settings(timing);
    settings.most_silent = 4;
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1), settings);
    std::vector<std::unique_ptr<Peer>> peers;
    const auto hello = fabric::encode(good_hello());
    std::size_t said = 0;
    SUBCASE("silent ones") {}
    SUBCASE("such that have begun a hello") { said = 40; }
    for (int i = 0; i < 12; ++i) {
        peers.push_back(std::make_unique<Peer>(*server));
        peers.back()->send(std::span(hello).first(said));
    }
    test::wait_until([&] { return server->dropped(Drop::crowded) == 8; });
    check_sound(std::move(server), scratch);
}

TEST_CASE("a server that ends does not wait for strangers") {
    const Scratch scratch;
    fabric::Timing timing = test::kTiming;
    timing.hello = timing.farewell = std::chrono::hours(1);
    auto server = test::start_server(test::server_settings(scratch.folder(), kLow, 1), test::tcp_settings(timing));
    const auto hello = fabric::encode(good_hello());
    Peer begun(*server);
    begun.send(std::span(hello).first(40));
    Peer silent(*server);
    server.reset();
    CHECK(begun.until_closed().empty());
    CHECK(silent.until_closed().empty());
    server = fresh_server(scratch);
    check_sound(std::move(server), scratch);
}

TEST_CASE("a frame that makes no sense ends its connection and changes nothing") {
    const Scratch scratch;
    auto server = fresh_server(scratch);
    const auto try_frame = [&](Drop reason, Stream stream, const auto& bytes) {
        const std::uint64_t before = server->dropped(reason);
        Peer peer(*server);
        peer.send(fabric::encode(good_hello(stream))).send(bytes);
        const auto answer = peer.until_closed();
        test::wait_until([&] { return server->dropped(reason) == before + 1; });
        CHECK(answer.size() == fabric::kFrameBytes);  // the welcome
    };
    server->core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    const auto pulls = Stream::parameters;
    const auto pushes = Stream::gradients;
    try_frame(Drop::malformed, pulls, fabric::encode(Frame{FrameKind::pull, 99, 1, 0}));
    try_frame(Drop::malformed, pulls, fabric::encode(Frame{FrameKind::push, 1, 1, kPushBytes}));
    try_frame(Drop::malformed, pulls, fabric::encode(Frame{FrameKind::welcome, 1, 1, 0}));
    try_frame(Drop::malformed, pulls, fabric::encode(Frame{static_cast<FrameKind>(99), 1, 1, 0}));
    try_frame(Drop::oversized, pulls, fabric::encode(Frame{FrameKind::pull, 1, 1, 1ULL << 60}));
    try_frame(Drop::malformed, pushes, fabric::encode(Frame{FrameKind::pull, 1, 1, 0}));
    try_frame(Drop::malformed, pushes, fabric::encode(Frame{FrameKind::push, 1, 2, kPushBytes}));
    try_frame(Drop::malformed, pushes, fabric::encode(Frame{FrameKind::push, 1, 0, kPushBytes}));
    try_frame(Drop::malformed, pushes, fabric::encode(Frame{FrameKind::push, 7, 1, 6000}));  // frozen
    try_frame(Drop::oversized, pushes, fabric::encode(Frame{FrameKind::push, 1, 1, ~0ULL}));
    try_frame(Drop::oversized, pushes, fabric::encode(Frame{FrameKind::push, 1, 1, kPushBytes - 2}));
    try_frame(Drop::oversized, pushes, fabric::encode(Frame{FrameKind::initialise, 1, 1, kPushBytes}));
    try_frame(Drop::oversized, pushes, fabric::encode(Frame{FrameKind::finish_initialise, 0, 1, 8}));
    auto damaged = fabric::encode(Frame{FrameKind::push, 1, 1, kPushBytes});
    damaged[4] ^= std::byte{2};
    try_frame(Drop::checksum, pushes, damaged);
    // A gradient that is damaged on the way, whole as it is.
    std::vector<std::byte> frame(fabric::kFrameBytes + kPushBytes + 4, std::byte{0x3c});
    const auto head = fabric::encode(Frame{FrameKind::push, 1, 1, kPushBytes});
    std::copy(head.begin(), head.end(), frame.begin());
    try_frame(Drop::checksum, pushes, frame);
    CHECK(server->core().stats().bytes_pushed == 0);
    CHECK_FALSE(server->core().failure().has_value());
    check_sound(std::move(server), scratch);
}

TEST_CASE("noise of any length, before a hello and after it, is dropped") {
    const Scratch scratch;
    auto server = fresh_server(scratch);
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::uint8_t> noise(random() % 300);
        for (auto& byte : noise) byte = static_cast<std::uint8_t>(random());
        Peer peer(*server);
        if (round % 3 != 0)
            peer.send(fabric::encode(good_hello(round % 3 == 1 ? Stream::parameters : Stream::gradients)));
        peer.send(noise).end_writing();
        const std::size_t most = round % 3 == 0 ? 0 : fabric::kFrameBytes;
        CHECK(peer.until_closed().size() <= most);
    }
    CHECK(server->dropped(Drop::stranger) > 10);
    CHECK(server->dropped(Drop::checksum) > 10);
    check_sound(std::move(server), scratch);
}

TEST_CASE("hellos and frames of any bytes are read or refused, and what is read is what was written") {
    const std::uint64_t rounds = test::fuzz_packets() / 10;  // an exception takes 0.1 ms under AddressSanitizer
    std::mt19937_64 random(8);
    std::uint64_t read = 0;
    std::array<std::uint64_t, fabric::kDrops> refused{};
    const auto attempt = [&](auto&& act) {
        try {
            act();
            ++read;
        } catch (const fabric::Dropped& dropped) {
            ++refused[static_cast<std::size_t>(dropped.reason())];
        }
    };
    // Some bytes of what is good are spoilt, and the checksum is mended in half of the cases.
    const auto spoil = [&random](auto& bytes, std::size_t sealed) {
        for (auto flips = random() % 4; flips > 0; --flips) {
            bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
        }
        if (random() % 2 == 0) seal(bytes, sealed);
    };
    for (std::uint64_t round = 0; round < rounds; ++round) {
        auto hello = fabric::encode(good_hello(random() % 2 == 0 ? Stream::parameters : Stream::gradients));
        spoil(hello, 76);
        attempt([&] {
            const auto again = fabric::encode(fabric::decode_hello(hello));
            CHECK(std::memcmp(again.data(), hello.data(), 72) == 0);
        });
        auto frame = fabric::encode(Frame{static_cast<FrameKind>(random() % 80), static_cast<std::uint32_t>(random()),
                                          random() >> random() % 64, random() >> random() % 64});
        spoil(frame, 24);
        attempt([&] {
            const Frame decoded = fabric::decode_frame(frame);
            const auto kind = static_cast<std::uint32_t>(decoded.kind);
            CHECK(((kind >= 1 && kind <= 5) || (kind >= 16 && kind <= 18) || kind == 32 || kind == 33 ||
                   (kind >= 64 && kind <= 71)));
            const auto again = fabric::encode(decoded);
            CHECK(std::memcmp(again.data(), frame.data(), 24) == 0);
        });
    }
    CHECK(read > rounds / 4);
    for (const Drop reason : {Drop::stranger, Drop::version, Drop::checksum, Drop::malformed}) {
        CHECK(refused[static_cast<std::size_t>(reason)] > 0);
    }
}

TEST_CASE("frames that someone with the token makes up never reach beyond a worker's own memory") {
    const Scratch scratch;
    auto server = fresh_server(scratch);
    test::Trainee(*server, test::tcp_worker_settings(*server, server->port(), 0)).initialise();
    server->allow_worker(0, test::token_of(0));
    std::mt19937_64 random(9);
    const std::uint64_t rounds = std::max<std::uint64_t>(100, test::fuzz_packets() / 2000);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        Peer peer(*server);
        peer.send(fabric::encode(good_hello(random() % 2 == 0 ? Stream::parameters : Stream::gradients)));
        for (std::uint64_t sequence = 1; sequence < 8; ++sequence) {
            const auto block = static_cast<std::uint32_t>(random() % 20 == 0 ? random() : random() % 8);
            const std::uint64_t bytes = random() % 3 == 0 ? random() >> random() % 64 : 0;
            const auto kind = random() % 4 == 0 ? static_cast<FrameKind>(random() % 80) : FrameKind::read;
            // Gradients and first values would be as good as a worker's own.
            const bool harmless = kind != FrameKind::initialise && kind != FrameKind::finish_initialise;
            peer.send(fabric::encode(Frame{harmless ? kind : FrameKind::read, block, sequence, bytes}));
        }
        peer.end_writing();
        peer.until_closed();
    }
    CHECK_FALSE(server->core().failure().has_value());
    check_sound(std::move(server), scratch);
}
