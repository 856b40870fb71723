// A switch on its own host: a SwitchNode over UDP.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fabric/node_loop.h"
#include "switch/switch_node.h"

namespace luwu::fabric {

class UdpSwitch {
  public:
    explicit UdpSwitch(const Address& bound, const UdpSettings& settings = {});  // throws Error
    [[nodiscard]] Address bound() const { return bound_; }
    // Works for a job, or for the next one: what it knew of the last is gone. Throws Error(invalid).
    void start(const Wiring& wiring, const Address& parent, std::uint16_t child, const std::vector<Address>& children);
    void stop();  // for no job, until it is started again
    [[nodiscard]] std::optional<SwitchCounts> counts();
    [[nodiscard]] std::optional<UdpCounters> socket_counts();
    [[nodiscard]] std::exception_ptr failure();

  private:
    Address bound_;
    UdpSettings settings_;
    std::optional<UdpSocket> socket_;  // while there is no job
    std::unique_ptr<SwitchNode> node_;
    std::unique_ptr<NodeLoop> loop_;
};

}  // namespace luwu::fabric
