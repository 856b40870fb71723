// The interfaces whose packets the XDP switch sees. The kernel takes the program off them when this process ends,
// however it ends: an attachment is a descriptor (a bpf_link), and nothing is pinned.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fabric/core/descriptor.h"
#include "switch/xdp_program.h"

namespace luwu::switching {

class XdpPorts {
  public:
    // From now on the kernel asks a program about every frame that comes in by these interfaces; until serve(), it lets
    // all pass. Throws Error: invalid where there is no such interface or another program is on it, permission, io.
    explicit XdpPorts(const std::vector<std::string>& interfaces);

    void serve(const XdpProgram& program);  // instead of the one before; no frame is missed in between
    void idle();
    // Each interface, and "native" (in its driver) or "generic" (in the kernel's stack, slower).
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> modes() const;
    [[nodiscard]] std::uint32_t numbers_end() const { return numbers_end_; }  // one past the interfaces' highest number

  private:
    struct Port {
        std::string name;
        bool native;
        fabric::Descriptor link;
    };
    void attach(const std::string& name, bool native);
    void run(int program);

    fabric::Descriptor pass_;  // the program that lets everything pass
    std::vector<Port> ports_;
    std::uint32_t numbers_end_ = 1;
};

}  // namespace luwu::switching
