// The door before a server of another protocol: its limits on strangers, and the bytes that it passes on.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>

#include "fabric/tcp/door.h"
#include "network.h"
#include "store/error.h"

namespace luwu::test {

namespace {

using fabric::Clock;
using fabric::Descriptor;
using fabric::Door;
using fabric::DoorSettings;

// A server inside that only accepts connections.
class Inside {
  public:
    explicit Inside(const std::string& folder) : path(folder + "/inside") {
        std::filesystem::create_directories(folder);
        listener_ = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        REQUIRE(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        REQUIRE(listen(listener_.get(), 128) == 0);
    }
    // Accepts the next connection, and returns it with its name.
    std::pair<Descriptor, std::string> next() {
        sockaddr_un address{};
        socklen_t length = sizeof address;
        Descriptor found(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
        REQUIRE(found.get() >= 0);
        const std::size_t name = length - offsetof(sockaddr_un, sun_path) - 1;
        return {std::move(found), std::string(address.sun_path + 1, name)};
    }
    [[nodiscard]] bool anybody() const {
        pollfd entry{listener_.get(), POLLIN, 0};
        return poll(&entry, 1, 0) == 1;
    }

    std::string path;

  private:
    Descriptor listener_;
};

DoorSettings settings_for(const Inside& inside) {
    DoorSettings settings;
    settings.address = "127.0.0.1";
    settings.inside = inside.path;
    settings.patience = std::chrono::milliseconds(20'000);
    settings.timing = kTiming;
    return settings;
}

Descriptor connect(const Door& door) {
    const fabric::Bell bell;
    return fabric::connect_to("127.0.0.1", door.port(), bell, Clock::now() + std::chrono::seconds(10));
}

void say(const Descriptor& socket, const std::string& text) {
    REQUIRE(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

// Receives `bytes` bytes, or all that come before the end.
std::string hear(const Descriptor& socket, std::size_t bytes) {
    std::string all;
    std::array<char, 65536> part{};
    while (all.size() < bytes) {
        pollfd entry{socket.get(), POLLIN, 0};
        REQUIRE(poll(&entry, 1, 20'000) == 1);
        const ssize_t count = recv(socket.get(), part.data(), std::min(part.size(), bytes - all.size()), 0);
        if (count <= 0) break;
        all.append(part.data(), static_cast<std::size_t>(count));
    }
    return all;
}

}  // namespace

TEST_CASE("bytes go both ways, any number of them for those who were admitted, and the end with them") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    Door door(settings_for(inside));
    const Descriptor worker = connect(door);
    say(worker, "hello");
    auto [served, name] = inside.next();
    CHECK(hear(served, 5) == "hello");
    CHECK(door.peer(name)->find("127.0.0.1:") == 0);
    REQUIRE(door.admit(name));
    CHECK_FALSE(door.admit(name + "0"));
    CHECK_FALSE(door.admit("somebody"));
    CHECK(door.stats().strangers == 0);
    const std::string much(4 << 20, 'm');
    const auto echo = [](const Descriptor& from, const Descriptor& to, const std::string& text) {
        std::thread sender([&] {
            for (std::size_t sent = 0; sent < text.size();) {
                const ssize_t count = send(from.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
                if (count < 0) {
                    pollfd room{from.get(), POLLOUT, 0};
                    poll(&room, 1, 1000);
                } else {
                    sent += static_cast<std::size_t>(count);
                }
            }
        });
        const std::string heard = hear(to, text.size());
        sender.join();
        return heard == text;
    };
    CHECK(echo(worker, served, much));
    CHECK(echo(served, worker, much));
    say(served, "goodbye");
    served = Descriptor();
    CHECK(hear(worker, 100) == "goodbye");
}

TEST_CASE("a stranger may send little") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    DoorSettings settings = settings_for(inside);
    settings.most_bytes = 100;
    Door door(settings);
    const Descriptor stranger = connect(door);
    say(stranger, std::string(100, 'x'));
    auto [served, name] = inside.next();
    CHECK(hear(served, 100).size() == 100);
    say(stranger, "y");
    CHECK(hear(stranger, 1).empty());
    wait_until([&] { return door.stats().talkative == 1 && door.stats().visitors == 0; });
}

TEST_CASE(
    "strangers who speak displace each other, those who are silent are not seen inside, and who was admitted stays") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    DoorSettings settings = settings_for(inside);
    settings.most_strangers = 4;
    settings.most_silent = 8;
    Door door(settings);
    const Descriptor worker = connect(door);
    say(worker, "w");
    auto [served, name] = inside.next();
    REQUIRE(door.admit(name));
    std::vector<Descriptor> silent;
    for (int i = 0; i < 50; ++i) silent.push_back(connect(door));
    wait_until([&] { return door.stats().lobby.crowded == 42; });
    CHECK_FALSE(inside.anybody());
    std::vector<Descriptor> strangers;
    std::vector<std::pair<Descriptor, std::string>> seen;
    for (int i = 0; i < 20; ++i) {
        strangers.push_back(connect(door));
        say(strangers.back(), "x");
        seen.push_back(inside.next());
    }
    wait_until([&] { return door.stats().evicted == 16; });
    CHECK(door.stats().strangers == 4);
    for (int i = 0; i < 16; ++i) CHECK_FALSE(door.admit(seen[static_cast<std::size_t>(i)].second));
    CHECK(door.admit(seen.back().second));
    say(worker, "still here");
    CHECK(hear(served, 11) == "wstill here");
}

TEST_CASE("one origin brings strangers at a pace, and any number of those who are admitted") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    DoorSettings settings = settings_for(inside);
    settings.burst = 4;
    settings.per_second = 0;
    Door door(settings);
    std::vector<Descriptor> workers;
    std::vector<std::pair<Descriptor, std::string>> served;
    for (int i = 0; i < 20; ++i) {
        workers.push_back(connect(door));
        say(workers.back(), "w");
        served.push_back(inside.next());
        REQUIRE(door.admit(served.back().second));
        REQUIRE(door.admit(served.back().second));  // gives its token back once
    }
    std::vector<Descriptor> strangers;
    for (int i = 0; i < 10; ++i) {
        strangers.push_back(connect(door));
        say(strangers.back(), "x");
    }
    wait_until([&] { return door.stats().hasty == 6; });
    CHECK(door.stats().strangers == 4);
    CHECK(door.stats().visitors == 24);
}

TEST_CASE("who is not admitted in time has to go") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    DoorSettings settings = settings_for(inside);
    settings.patience = std::chrono::milliseconds(50);
    Door door(settings);
    const Descriptor silent = connect(door);
    const Descriptor stranger = connect(door);
    say(stranger, "x");
    CHECK(hear(stranger, 1).empty());
    CHECK(hear(silent, 1).empty());
    wait_until([&] { return door.stats().visitors == 0; });
    CHECK(door.stats().lobby.silent + door.stats().late == 2);
}

TEST_CASE("a door that was shut lets nobody in, and those inside stay; a path that is too long is refused") {
    const Scratch scratch;
    Inside inside(scratch.folder());
    DoorSettings settings = settings_for(inside);
    Door door(settings);
    const Descriptor worker = connect(door);
    say(worker, "w");
    auto [served, name] = inside.next();
    door.shut();
    CHECK_THROWS_AS(connect(door), fabric::Broken);
    say(worker, "x");
    CHECK(hear(served, 2) == "wx");
    settings.inside = std::string(200, 'p');
    CHECK_THROWS_AS(Door{settings}, Error);
}

}  // namespace luwu::test
