// Answers of a server, or somebody in its place, to a worker over TCP.
#include <poll.h>

#include <atomic>

#include "fabric/tcp/socket.h"
#include "fabric/tcp/tcp_lane.h"
#include "stream.h"

namespace {

using namespace luwu::fabric;
using luwu::fuzz::require;

constexpr std::uint64_t kBlockBytes = 64;
constexpr std::uint32_t kRequests = 4;
constexpr Timing kTiming{.hello = std::chrono::seconds(2),
                         .silence = std::chrono::seconds(2),
                         .reconnect = std::chrono::milliseconds(0),
                         .backoff = std::chrono::milliseconds(1),
                         .longest_backoff = std::chrono::milliseconds(1),
                         .farewell = std::chrono::milliseconds(1)};

struct Port {
    Port() : listener(listen_at("127.0.0.1", 0)), number(bound_port(listener)) {}
    Descriptor listener;
    std::uint16_t number;
};

// Answers the first connection, and ends those after it at once.
void serve(const Descriptor& listener, luwu::fuzz::Bytes stream, const std::atomic<bool>& ended) {
    std::vector<Descriptor> sockets;
    while (!ended) {
        pollfd entry{listener.get(), POLLIN, 0};
        if (poll(&entry, 1, 1) != 1) continue;
        Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.get() < 0) continue;
        if (sockets.empty()) luwu::fuzz::send_all(socket, stream);
        shutdown(socket.get(), SHUT_WR);
        sockets.push_back(std::move(socket));
    }
}

}  // namespace

LUWU_FUZZ_TARGET("answers") {
    static const Port port;
    luwu::fuzz::Input input(data);
    const bool pushes = input.number() % 2 != 0;
    const std::vector<std::byte> stream = luwu::fuzz::stream_of(input);
    const TcpLinkSettings settings{"127.0.0.1", port.number, 7, 0, 1, Token{}, std::nullopt, kTiming};
    std::atomic<bool> ended{false};
    std::atomic<std::uint32_t> finished{0};
    std::optional<luwu::Error> failure;
    std::vector<std::vector<std::byte>> blocks;
    {
        TcpLane lane(settings, nullptr, pushes ? Stream::gradients : Stream::parameters, 1,
                     [&](const luwu::Error& error) {
                         failure = error;
                         ended = true;
                     });
        for (std::uint32_t i = 0; i < kRequests; ++i) {
            std::span<std::byte> memory = blocks.emplace_back(kBlockBytes);
            const auto kind = pushes ? FrameKind::push : FrameKind::pull;
            lane.post({kind, i, pushes ? memory : std::span<std::byte>(), pushes ? std::span<std::byte>() : memory,
                       [&finished](bool) { ++finished; }});
        }
        lane.start();
        serve(port.listener, stream, ended);
        lane.stop();
        require(lane.stats().bytes_received <= kRequests * kBlockBytes, "no more comes than was asked for");
    }
    require(failure.has_value(), "a worker that has lost its server says so");
    require(finished == kRequests, "every request ends, once");
}
