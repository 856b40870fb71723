// The server of workers on other hosts: a ParameterServer behind TCP, with TLS if asked for. What travels through this
// port is in fabric/tcp/frames.h; a worker joins, begins its steps and votes on them through the control plane.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <optional>
#include <thread>

#include "fabric/core/abandoned_blocks.h"
#include "fabric/tcp/lobby.h"
#include "fabric/tcp/tcp_session.h"

namespace luwu::fabric {

struct TcpSettings {
    std::string address;     // of this host: a name, IPv4 or IPv6
    std::uint16_t port = 0;  // 0: the kernel chooses
    std::uint64_t job = 0;
    std::optional<TlsSettings> tls;
    Timing timing;
    // Number of workers that read and write first values here, and make their steps over UDP. None: they train here.
    std::optional<std::uint32_t> readers = {};
    // Limits on connections; one more than a limit closes another one, see fabric/tcp/crowd.h.
    std::size_t most_silent = 256;  // connections that have sent no whole hello yet; with TLS, nothing
    // Connections that have a thread and are not admitted yet: with TLS those in a handshake, else those with a valid
    // hello.
    std::size_t most_greeting = 64;
};

class TcpServer {
  public:
    TcpServer(ServerSettings server, const TcpSettings& settings);  // throws Error
    ~TcpServer();  // workers that wait are told that the server was closed
    TcpServer(const TcpServer&) = delete;
    TcpServer& operator=(const TcpServer&) = delete;

    [[nodiscard]] ParameterServer& core() { return *core_; }
    [[nodiscard]] const ParameterServer& core() const { return *core_; }
    [[nodiscard]] std::uint16_t port() const { return port_; }
    // Lets a worker in that brings this token: one TcpWorker, as often as its connections break. Called again for a
    // rank, another takes its place, whose pushes are counted from zero. Throws Error(invalid).
    void allow_worker(std::uint32_t rank, const Token& token);
    // Ends the worker's connections, and lets nobody in there until allow_worker is called again, after
    // ParameterServer::wait_for_place. See pipeline::Pipeline::lose. Throws Error(invalid).
    std::optional<std::uint64_t> lose_worker(std::uint32_t rank);
    [[nodiscard]] std::uint64_t dropped(Drop reason) const { return drops_[static_cast<std::size_t>(reason)]; }

  private:
    struct Served {
        std::shared_ptr<TcpConnection> connection;
        std::uint64_t number = 0;  // its number in the crowd
        std::thread thread;
        std::atomic<bool> admitted{false};
        std::atomic<bool> evicted{false};
        std::atomic<bool> ended{false};
    };

    void accept_connections();
    void look_into_lobby();
    void accept_one(Lobby::Guest guest);
    [[nodiscard]] bool refused_at_once(const Descriptor& socket);
    void join_ended();
    void serve(Served& served);
    void greet_and_serve(Served& served);
    [[nodiscard]] Hello greet(TcpConnection& connection) const;
    [[nodiscard]] Hello checked(std::span<const std::byte, kHelloBytes> bytes) const;
    void admit(const Hello& hello, Served& served);
    void leave_crowd(const Served& served);
    void leave(TcpMember& member, Stream stream);
    static void part_from(TcpMember& member, const std::optional<Token>& token);
    void refuse(TcpConnection& connection, const Broken& broken);
    void count(Drop reason) { ++drops_[static_cast<std::size_t>(reason)]; }
    void failed(const Error& error);

    TcpSettings settings_;
    std::optional<TlsContext> tls_;
    Lobby lobby_;  // of the accepting thread
    Lobby::Stats seen_;
    std::uint16_t port_;
    std::array<std::atomic<std::uint64_t>, kDrops> drops_{};
    std::atomic<std::uint32_t> greeting_{0};
    std::atomic<bool> failed_{false};
    std::atomic<bool> closing_{false};
    Bell bell_;  // of the accepting thread
    // Both taken with the pipeline's lock held, so never the other way round.
    std::mutex served_mutex_;
    std::list<Served> served_;
    Crowd crowd_;  // the connections of served_ that have sent no good hello
    std::uint64_t next_number_ = 1;
    AbandonedBlocks abandoned_;
    std::vector<std::unique_ptr<TcpMember>> members_;
    std::unique_ptr<ParameterServer> core_;
    std::thread acceptor_;
};

}  // namespace luwu::fabric
