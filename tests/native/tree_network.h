// A host in a namespace of its own for every participant of a job over UDP, and a cable for every link of the tree.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "fabric/protocol/node.h"
#include "namespaces.h"

namespace luwu::test {

class TreeNetwork {
  public:
    // The tree is that of UdpJob: children in groups of `fan_in`, level by level, until one is left.
    TreeNetwork(std::uint32_t workers, std::uint32_t fan_in);

    // Hosts: the server, the workers, then the switches from the lowest level up.
    [[nodiscard]] const Namespace& host(std::size_t number) const { return hosts_[number]; }
    [[nodiscard]] static fabric::Address address(std::size_t number);  // port 0
    [[nodiscard]] const std::vector<std::string>& interfaces(std::size_t number) const { return interfaces_[number]; }

  private:
    void link(std::size_t child, std::size_t parent);

    std::deque<Namespace> hosts_;
    std::vector<std::vector<std::string>> interfaces_;
};

}  // namespace luwu::test
