// Common parts of the network fabric's tests: a server, workers that train over real sockets, and a link that breaks.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fabric/tcp/tcp_server.h"
#include "fabric/tcp/tcp_worker.h"
#include "support.h"

namespace luwu::test {

inline constexpr std::uint64_t kJob = 0x1234567890ABCDEF;
inline constexpr fabric::Timing kTiming{.hello = std::chrono::seconds(5),
                                        .silence = std::chrono::seconds(10),
                                        .reconnect = std::chrono::seconds(20),
                                        .backoff = std::chrono::milliseconds(5),
                                        .longest_backoff = std::chrono::milliseconds(50),
                                        .farewell = std::chrono::seconds(2)};

fabric::Token token_of(std::uint32_t rank, unsigned generation = 0);
fabric::ServerSettings server_settings(const std::string& folder, const Dtypes& dtypes, std::uint32_t workers,
                                       std::uint64_t memory_bytes = std::uint64_t{1} << 28);
fabric::TcpSettings tcp_settings(const fabric::Timing& timing = kTiming);
// Every worker is allowed in already.
std::unique_ptr<fabric::TcpServer> start_server(const fabric::ServerSettings& settings,
                                                const fabric::TcpSettings& tcp = tcp_settings());
fabric::TcpWorkerSettings tcp_worker_settings(const fabric::TcpServer& server, std::uint16_t port, std::uint32_t rank,
                                              const fabric::Timing& timing = kTiming);
// All of each block on one server.
fabric::Placement whole(const store::StoreShape& shape);
std::int64_t finish(fabric::Endpoint& endpoint, fabric::Handle handle);

// A worker of small_shape that trains through its endpoint, and begins and votes as a control plane would.
class Trainee {
  public:
    Trainee(fabric::TcpServer& server, const fabric::TcpWorkerSettings& settings);
    void initialise();
    std::int64_t step(std::uint64_t number, bool roll_back = false);
    // The values of a block, as they were initialised.
    [[nodiscard]] bool reads_first_values(std::uint32_t block);
    fabric::Handle push(std::uint64_t step, std::uint32_t block);  // the gradient of a step, at the arena's front

    fabric::TcpWorker& remote() { return worker_; }
    fabric::Endpoint& endpoint() { return *endpoint_; }
    std::uint64_t pushes = 0;

  private:
    fabric::TcpServer& server_;
    std::uint32_t rank_;
    store::StoreShape shape_;
    fabric::TcpWorker worker_;
    std::unique_ptr<fabric::Endpoint> endpoint_;
};

std::vector<std::unique_ptr<Trainee>> join(fabric::TcpServer& server, std::uint16_t port, std::uint32_t workers,
                                           const fabric::Timing& timing = kTiming);
// Every worker in a thread of its own; all must commit.
void train(std::vector<std::unique_ptr<Trainee>>& workers, std::uint64_t first_step, std::uint64_t last_step);

template <typename Act>
Error failure_of(Act&& act) {
    try {
        act();
    } catch (const Error& error) {
        return error;
    }
    return {ErrorKind::invalid, "no error"};
}

// Forwards connections to a server, and breaks them.
class Proxy {
  public:
    explicit Proxy(std::uint16_t target);
    ~Proxy();
    Proxy(const Proxy&) = delete;
    Proxy& operator=(const Proxy&) = delete;

    [[nodiscard]] std::uint16_t port() const { return port_; }
    // Cuts every connection that has carried so many bytes from the worker, or to it.
    void cut_after(std::uint64_t up, std::uint64_t down);
    // Changes a byte of every connection, the one that so many were carried before, from the worker or to it.
    void damage_at(std::uint64_t up, std::uint64_t down);
    void cut();                                           // all connections, now
    void refuse(bool refusing) { refusing_ = refusing; }  // new connections are closed at once
    void deafen(bool deaf);  // what workers send is not acknowledged, as if their packets were lost
    void stall(fabric::Stream stream, bool stalled) { stalled_[static_cast<std::size_t>(stream)] = stalled; }
    [[nodiscard]] std::uint64_t cuts() const { return cuts_; }

  private:
    struct Pair {
        fabric::Descriptor worker;
        fabric::Descriptor server;
        std::uint64_t up = 0;
        std::uint64_t down = 0;
        std::size_t stream = 2;  // unknown
    };
    void run();
    [[nodiscard]] bool forward(Pair& pair, bool up);  // false: the connection has ended

    std::uint16_t target_;
    fabric::Descriptor listener_;
    std::uint16_t port_;
    std::atomic<std::uint64_t> most_up_{~0ULL};
    std::atomic<std::uint64_t> most_down_{~0ULL};
    std::array<std::atomic<std::uint64_t>, 2> damaged_{~0ULL, ~0ULL};  // down, up
    std::atomic<std::uint64_t> cuts_{0};
    std::atomic<bool> cut_now_{false};
    std::atomic<bool> deaf_{false};
    std::atomic<bool> deafen_now_{false};
    std::atomic<bool> refusing_{false};
    std::array<std::atomic<bool>, 3> stalled_{};
    std::atomic<bool> stopping_{false};
    std::vector<Pair> pairs_;
    std::thread thread_;
};

}  // namespace luwu::test
