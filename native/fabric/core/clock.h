// The clock of all that measures here.
#pragma once

#include <cstdint>

namespace luwu::fabric {

[[nodiscard]] std::uint64_t monotonic_ns();  // CLOCK_MONOTONIC

}  // namespace luwu::fabric
