// Connections of strangers: which one is closed for a new one, and the cost of silent ones.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "fabric/tcp/lobby.h"
#include "fabric/tcp/pace.h"
#include "fabric/tcp/socket.h"
#include "network.h"

namespace luwu::test {

namespace {

using fabric::Clock;
using fabric::Crowd;
using fabric::Descriptor;
using fabric::Lobby;
using fabric::Origin;
using fabric::Pace;

Origin origin_of(const std::string& address) {
    sockaddr_storage storage{};
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
        storage.ss_family = AF_INET;
    } else {
        REQUIRE(inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1);
        storage.ss_family = AF_INET6;
    }
    return fabric::origin_of(storage);
}

constexpr std::chrono::milliseconds kPatience{10'000};

Lobby lobby_for(std::size_t most, std::size_t first_bytes = 1) {
    return {fabric::listen_at("127.0.0.1", 0), most, first_bytes, kPatience, std::chrono::milliseconds(10)};
}

Descriptor connect(const Lobby& lobby) {
    const fabric::Bell bell;
    return fabric::connect_to("127.0.0.1", fabric::bound_port(lobby.listener()), bell, Clock::now() + kPatience);
}

}  // namespace

TEST_CASE("an origin is an IPv4 address, or the network of an IPv6 address") {
    CHECK(origin_of("10.0.0.1") == origin_of("::ffff:10.0.0.1"));
    CHECK(origin_of("10.0.0.1") != origin_of("10.0.0.2"));
    CHECK(origin_of("2001:db8::1") == origin_of("2001:db8::ffff:1"));
    CHECK(origin_of("2001:db8::1") != origin_of("2001:db8:0:1::1"));
}

TEST_CASE("for one more the oldest of the origin that has the most goes, and others stay") {
    Crowd crowd(4);
    const Origin loud = origin_of("10.0.0.9");
    const Origin quiet = origin_of("10.0.0.2");
    CHECK_FALSE(crowd.enter(1, quiet));
    for (std::uint64_t number = 2; number <= 4; ++number) CHECK_FALSE(crowd.enter(number, loud));
    for (std::uint64_t number = 5; number <= 100; ++number) CHECK(*crowd.enter(number, loud) == number - 3);
    CHECK(*crowd.enter(101, quiet) == 98);
    CHECK(crowd.size() == 4);
    crowd.leave(1);
    crowd.leave(1);
    CHECK(crowd.size() == 3);
    CHECK_FALSE(crowd.enter(102, quiet));
}

TEST_CASE("where each comes from another origin, the oldest goes") {
    Crowd crowd(2);
    CHECK_FALSE(crowd.enter(1, origin_of("10.0.0.9")));
    CHECK_FALSE(crowd.enter(2, origin_of("10.0.0.8")));
    CHECK(*crowd.enter(3, origin_of("10.0.0.1")) == 1);
    CHECK(*crowd.enter(4, origin_of("10.0.0.5")) == 2);
}

TEST_CASE("an origin may come in a burst, then at its pace, and others beside it") {
    Pace pace(3, 10);
    const Origin loud = origin_of("10.0.0.9");
    const Origin quiet = origin_of("10.0.0.2");
    const Clock::time_point start{};
    const auto after = [start](int milliseconds) { return start + std::chrono::milliseconds(milliseconds); };
    for (int i = 0; i < 3; ++i) CHECK(pace.take(loud, start));
    for (int i = 0; i < 100; ++i) CHECK_FALSE(pace.take(loud, start));
    CHECK(pace.take(quiet, start));
    CHECK_FALSE(pace.take(loud, after(99)));
    CHECK(pace.take(loud, after(101)));
    CHECK_FALSE(pace.take(loud, after(102)));
    int taken = 0;
    for (int i = 0; i < 10'000; ++i) taken += pace.take(loud, after(102 + i)) ? 1 : 0;
    CHECK(taken >= 99);
    CHECK(taken <= 101);
}

TEST_CASE("who gives its token back has not come, and a full bucket is forgotten") {
    Pace pace(2, 10);
    const Origin origin = origin_of("10.0.0.2");
    const Clock::time_point start{};
    for (int i = 0; i < 100; ++i) {
        REQUIRE(pace.take(origin, start));
        pace.give_back(origin);
    }
    CHECK(pace.take(origin, start));
    pace.forget_full(start);
    CHECK(pace.size() == 1);
    pace.forget_full(start + std::chrono::seconds(1));
    CHECK(pace.size() == 0);
    pace.give_back(origin);
    CHECK(pace.size() == 0);
}

TEST_CASE("connections that say nothing wait in the lobby, up to its size, and others are let through") {
    Lobby lobby = lobby_for(4);
    std::vector<Descriptor> silent;
    for (int i = 0; i < 20; ++i) silent.push_back(connect(lobby));
    const Descriptor speaks = connect(lobby);
    REQUIRE(send(speaks.get(), "x", 1, MSG_NOSIGNAL) == 1);
    std::vector<Lobby::Guest> guests;
    wait_until([&] {
        for (auto& guest : lobby.look(Clock::now())) guests.push_back(std::move(guest));
        return !guests.empty() && lobby.stats().crowded >= 16;
    });
    REQUIRE(guests.size() == 1);
    CHECK(guests[0].origin == origin_of("127.0.0.1"));
    char heard = 0;
    CHECK(recv(guests[0].socket.get(), &heard, 1, 0) == 1);  // the byte that the guest sent is still there
    CHECK(lobby.stats().silent == 0);
    CHECK(lobby.look(Clock::now() + 2 * kPatience).empty());
    CHECK(lobby.stats().silent == 20 - lobby.stats().crowded);
    CHECK(lobby.deadline() == Clock::time_point::max());
}

TEST_CASE("a connection waits until its first bytes are all there, or no more will come") {
    Lobby lobby = lobby_for(4, 3);
    const Descriptor slow = connect(lobby);
    const Descriptor ends = connect(lobby);
    REQUIRE(send(slow.get(), "ab", 2, MSG_NOSIGNAL) == 2);
    REQUIRE(send(ends.get(), "xy", 2, MSG_NOSIGNAL) == 2);
    REQUIRE(shutdown(ends.get(), SHUT_WR) == 0);
    const auto heard_from = [&lobby] {
        std::vector<Lobby::Guest> guests;
        wait_until([&] {
            for (auto& guest : lobby.look(Clock::now())) guests.push_back(std::move(guest));
            return !guests.empty();
        });
        REQUIRE(guests.size() == 1);
        std::string words(3, ' ');
        words.resize(static_cast<std::size_t>(recv(guests[0].socket.get(), words.data(), words.size(), 0)));
        return words;
    };
    CHECK(heard_from() == "xy");
    REQUIRE(send(slow.get(), "c", 1, MSG_NOSIGNAL) == 1);
    CHECK(heard_from() == "abc");
}

TEST_CASE("after a look that found something the lobby rests, longer where many came, unless there may be more") {
    Lobby lobby = lobby_for(200);
    const auto now = Clock::now();
    CHECK(lobby.look(now).empty());
    CHECK(lobby.rests_until() < now);
    std::vector<Descriptor> many;
    for (int i = 0; i < 100; ++i) many.push_back(connect(lobby));
    CHECK(lobby.look(now).empty());
    CHECK(lobby.rests_until() < now);  // 64 of them
    const auto rests = [&](std::chrono::milliseconds rest) {
        wait_until([&] { return lobby.look(now).empty() && lobby.rests_until() == now + rest; });
    };
    rests(Lobby::kCrowdedRest);
    many.push_back(connect(lobby));
    rests(Lobby::kRest);
}

TEST_CASE("a connection that ends without a word is forgotten") {
    Lobby lobby = lobby_for(4);
    {
        const Descriptor gone = connect(lobby);
    }
    wait_until([&] { return lobby.look(Clock::now()).empty() && lobby.stats().closed == 1; });
}

}  // namespace luwu::test
