// Stands between the network and a server that speaks a protocol of its own (gRPC) on a Unix socket, and passes bytes
// through. Until admit() is called for a connection, it may send little, for a short time, and beside few others, and
// those of one origin come in at a pace, because the server inside does much more work for each than the door. The
// server inside does not see connections that send nothing. A connection ends when its client closes it, even if only
// for writing: gRPC does not use half-closed connections.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabric/tcp/lobby.h"
#include "fabric/tcp/pace.h"
#include "fabric/tcp/socket.h"

namespace luwu::fabric {

struct DoorSettings {
    std::string address;
    std::uint16_t port = 0;               // 0: the kernel chooses
    std::string inside;                   // path of the Unix socket; connected to when somebody has spoken
    std::size_t most_silent = 256;        // connections that have sent nothing yet
    std::size_t most_strangers = 64;      // strangers: connections that have sent data and are not admitted
    std::uint64_t most_bytes = 32 << 10;  // bytes that one stranger may send
    double burst = 128;                   // strangers of one origin at once; those admitted do not count
    double per_second = 5;                // new strangers of one origin in a second, in the long run
    std::chrono::milliseconds patience;   // before a silent connection or a stranger is closed
    Timing timing;
};

class Door {
  public:
    explicit Door(const DoorSettings& settings);  // throws Error
    ~Door();
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;

    [[nodiscard]] std::uint16_t port() const { return port_; }
    // `name`: name of the connection's own end of the Unix socket, in the abstract namespace, without its first zero.
    // False: the connection has ended.
    bool admit(const std::string& name);
    [[nodiscard]] std::optional<std::string> peer(const std::string& name);  // its host and port, for people
    // Takes in no more connections; those that are there stay.
    void shut();
    // Shuts the door and ends all connections: when the client has read what the server sent, or after a farewell's
    // time.
    void close();

    struct Stats {
        Lobby::Stats lobby;
        std::uint64_t evicted = 0;    // strangers that were closed for others
        std::uint64_t talkative = 0;  // strangers that sent too much
        std::uint64_t late = 0;       // strangers that were not admitted in time
        std::uint64_t hasty = 0;      // connections of an origin that came too often
        std::size_t strangers = 0;    // now
        std::size_t visitors = 0;     // now, strangers and admitted ones
    };
    [[nodiscard]] Stats stats();

  private:
    struct Pipe {
        std::vector<std::byte> left;  // bytes that the receiving end had no room for
        std::uint64_t moved = 0;      // bytes that have come
        bool ended = false;           // nothing more comes
    };
    struct Visitor {
        Descriptor outside;
        Descriptor inside;
        Pipe in;
        Pipe out;
        std::string peer;
        Origin origin;
        bool admitted = false;
        bool leaving = false;  // the server has sent everything; the client only has to read it
        Clock::time_point until;
        std::uint32_t watched_outside = 0;
        std::uint32_t watched_inside = 0;
    };

    void run();
    [[nodiscard]] bool turn();  // false: this was the last turn
    void let_in(Lobby::Guest guest, Clock::time_point now);
    [[nodiscard]] bool serve(Visitor& visitor, Clock::time_point now);  // false: the visitor has to go
    [[nodiscard]] bool pass(const Descriptor& from, const Descriptor& to, Pipe& pipe, std::uint64_t most);
    void watch(std::uint64_t number, Visitor& visitor);
    void watch_lobby(bool watches);
    void remove(std::uint64_t number);
    void sweep(Clock::time_point now);
    [[nodiscard]] std::string name_of_visitor(std::uint64_t number) const;
    [[nodiscard]] std::optional<std::uint64_t> number_of(const std::string& name) const;

    DoorSettings settings_;
    std::string prefix_;  // of the names in the abstract namespace
    std::mutex mutex_;    // guards all below
    std::optional<Lobby> lobby_;
    std::uint16_t port_;
    Descriptor events_;
    Descriptor wake_;
    Crowd strangers_;
    Pace pace_;
    std::unordered_map<std::uint64_t, Visitor> visitors_;
    std::uint64_t next_ = 1;
    Clock::time_point swept_at_;
    bool watches_lobby_ = true;
    std::chrono::milliseconds waits_{0};  // for the next event, at most
    Stats stats_;
    std::vector<std::byte> room_;
    std::atomic<Clock::time_point> stops_at_{Clock::time_point::max()};
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::fabric
