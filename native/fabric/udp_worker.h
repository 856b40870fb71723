// A worker whose training steps travel over UDP, and everything else over TCP.
#pragma once

#include <memory>

#include "fabric/remote_worker.h"
#include "fabric/udp_port.h"

namespace luwu::fabric {

class UdpWorker final : private StepPath {
  public:
    // The socket is bound before the server can know where this worker's data comes from. Throws Error.
    UdpWorker(const RemoteConfig& config, UdpSocket socket);
    ~UdpWorker() override;

    [[nodiscard]] RemoteWorker& remote() { return *remote_; }
    [[nodiscard]] Address bound() const { return port_.bound(); }
    // Once, when the tree is known. The wiring's blocks are filled in here. `group` as in UdpPort.
    void start(Wiring wiring, const Address& parent, std::uint16_t child, const Address& group);

    // What the server answered to the beginning of this worker's step: its epoch, and whether another worker has given
    // the step up already. Between these two, pulls and pushes are those of all workers.
    void begin_step(std::uint32_t epoch, bool given_up);
    void end_step();
    [[nodiscard]] std::optional<WorkerCounts> counts() { return port_.counts(); }
    [[nodiscard]] std::optional<UdpCounters> socket_counts() { return port_.socket_counts(); }

  private:
    bool pull(std::uint32_t block, std::span<std::byte> into, Done& done) override;
    void push(std::uint32_t block, const std::byte* gradient, Done done) override;
    void interrupted(std::deque<UdpPort::Pull> pulls);

    store::StoreShape shape_;
    // The port's lock guards these.
    bool in_step_ = false;
    bool given_up_ = false;  // the step: what is left of it is pulled over TCP, and pushed nowhere
    UdpPort port_;
    std::unique_ptr<RemoteWorker> remote_;  // its threads call the port, and the port's call it
};

}  // namespace luwu::fabric
