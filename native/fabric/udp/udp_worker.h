// A worker whose training steps travel over UDP, and everything else over TCP.
#pragma once

#include <memory>
#include <vector>

#include "fabric/tcp/tcp_worker.h"
#include "fabric/udp/udp_port.h"

namespace luwu::fabric {

class UdpWorker final : private StepPath {
  public:
    // The sockets, one for each server, are bound before the servers can know where this worker's data comes from.
    // Throws Error.
    UdpWorker(const TcpWorkerSettings& settings, std::vector<UdpSocket> sockets);
    ~UdpWorker() override;

    [[nodiscard]] TcpWorker& remote() { return *remote_; }
    [[nodiscard]] std::uint32_t servers() const { return static_cast<std::uint32_t>(trees_.size()); }
    [[nodiscard]] Address bound(std::uint32_t server) const { return trees_[server]->port.bound(); }
    // Once for each server, when its tree is known. The wiring's blocks are filled in here. `group` as in UdpPort.
    void start(std::uint32_t server, Wiring wiring, const Address& parent, std::uint16_t child, const Address& group);

    // Takes the server's answer to the beginning of this worker's step: its epoch, and true if another worker has given
    // the step up already. Between these two, pulls and pushes are those of all workers.
    void begin_step(std::uint32_t server, std::uint32_t epoch, bool given_up);
    void end_step();
    [[nodiscard]] std::optional<WorkerNodeStats> node_stats(std::uint32_t server) {
        return trees_[server]->port.node_stats();
    }
    [[nodiscard]] std::optional<UdpStats> socket_stats(std::uint32_t server) {
        return trees_[server]->port.socket_stats();
    }

  private:
    // Connection to one server: its blocks come and go through a tree of its own. The port's lock guards the rest.
    struct Tree {
        Tree(UdpSocket socket, UdpPort::Events events) : port(std::move(socket), std::move(events)) {}
        bool in_step = false;
        bool given_up = false;  // the step: what is left of it is pulled over TCP, and pushed nowhere
        UdpPort port;
    };

    bool pull(const Piece& piece, std::span<std::byte> into, Done& done) override;
    void push(const Piece& piece, const std::byte* gradient, Done done) override;
    void interrupted(std::uint32_t server, std::deque<UdpPort::Pull> pulls);

    Placement placement_;
    std::vector<std::vector<WireBlock>> blocks_;  // of each server
    std::vector<std::unique_ptr<Tree>> trees_;
    std::unique_ptr<TcpWorker> remote_;  // its threads call the ports, and the ports' call it
};

}  // namespace luwu::fabric
