// What a switch inside the kernel keeps of root's rights. XDP needs three capabilities whenever a job begins, because
// each job has a program and maps of its own. So the process keeps these three, but in force only for the moment; every
// other right is given up for good, and a program that it runs gets none.
#pragma once

#include <cstdint>
#include <optional>

namespace luwu::fabric {

struct UserAndGroup {
    std::uint32_t user = 0;
    std::uint32_t group = 0;
};

// The sets of a thread, a bit for each capability.
struct Capabilities {
    std::uint64_t effective = 0;
    std::uint64_t permitted = 0;
    std::uint64_t inheritable = 0;
};

// Gives up every capability but those three, and these are no longer in force; with a user, becomes that one, where
// root does so. Before the process has other threads: capabilities are each thread's own. Throws Error: order where it
// has, permission where the kernel refuses.
void keep_xdp_capabilities_alone(const std::optional<UserAndGroup>& user);

// Puts the kept capabilities in force, in this thread. Threads that are made meanwhile would have them for good.
class RaisedCapabilities {
  public:
    RaisedCapabilities();
    ~RaisedCapabilities();
    RaisedCapabilities(const RaisedCapabilities&) = delete;
    RaisedCapabilities& operator=(const RaisedCapabilities&) = delete;

  private:
    Capabilities before_;
};

}  // namespace luwu::fabric
