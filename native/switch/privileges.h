// The rights of root that a switch inside the kernel keeps. XDP needs three capabilities whenever a job begins, because
// each job has a program and maps of its own. So the process keeps these three permitted and puts them in force only
// while it needs them. It gives up every other right for good, and a program that it runs gets none.
#pragma once

#include <cstdint>
#include <optional>

namespace luwu::switching {

struct UserAndGroup {
    std::uint32_t user = 0;
    std::uint32_t group = 0;
};

// The capability sets of a thread, a bit for each capability.
struct Capabilities {
    std::uint64_t effective = 0;
    std::uint64_t permitted = 0;
    std::uint64_t inheritable = 0;
};

// Gives up every capability except those three, which are no longer in force. With a user, a process of root becomes
// that user. Call it before the process has other threads, because capabilities belong to a thread. Throws Error: order
// where there are other threads, permission where the kernel refuses.
void keep_xdp_capabilities_alone(const std::optional<UserAndGroup>& user);

// Puts the kept capabilities in force, in this thread. A thread that is made meanwhile would have them in force for
// good.
class RaisedCapabilities {
  public:
    RaisedCapabilities();
    ~RaisedCapabilities();
    RaisedCapabilities(const RaisedCapabilities&) = delete;
    RaisedCapabilities& operator=(const RaisedCapabilities&) = delete;

  private:
    Capabilities before_;
};

}  // namespace luwu::switching
