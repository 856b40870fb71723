// Loads and stores at any address, in the processor's byte order. Internal to the kernels.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/multiversion.h"

namespace luwu::kernels {

/// The `i`th of the values packed at `from`. The compiler vectorises this as it does an array.
template <class Value>
LUWU_INLINE Value load_at(const std::byte* from, std::size_t i) {
    Value value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    return value;
}

template <class Value>
LUWU_INLINE void store_at(std::byte* to, std::size_t i, Value value) {
    std::memcpy(to + i * sizeof value, &value, sizeof value);
}

}  // namespace luwu::kernels
