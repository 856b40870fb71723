// Push and pull are two independent streams: each has its own rings, doorbell, connection and thread.
#pragma once

#include <cstdint>

namespace luwu::fabric {

enum class Stream : std::uint32_t { parameters = 0, gradients = 1 };

}  // namespace luwu::fabric
