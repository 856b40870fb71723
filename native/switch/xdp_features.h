// XDP actions that an interface can do.
#pragma once

namespace luwu::switching {

// True if frames can be redirected to this interface in its driver. A veth can only if its other end has XDP, or GRO
// on. True where the kernel is too old to say (before 6.3).
[[nodiscard]] bool takes_redirected_frames(unsigned interface_number);

}  // namespace luwu::switching
