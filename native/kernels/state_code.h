// How the store keeps the numbers of one plane of a chunk's optimizer states.
#pragma once

#include <cstddef>
#include <cstdint>

namespace luwu::kernels {

enum class StateCode : std::uint8_t { float32 };

/// Bytes of a plane of `elements`, without padding.
[[nodiscard]] constexpr std::uint64_t plane_bytes(StateCode, std::uint64_t elements) {
    return elements * sizeof(float);
}

}  // namespace luwu::kernels
