// Stores past the cache, for memory that this core will not read again soon. Internal to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/multiversion.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace luwu::kernels {

/// Copies a tile of `elements` floats, on a cache line and itself in the cache, to `target`. Not ordered with other
/// stores before finish_stores().
LUWU_INLINE void store_past_cache(float* target, const float* tile, std::size_t elements) {
    std::size_t i = 0;
#if defined(__x86_64__)
    if (reinterpret_cast<std::uintptr_t>(target) % sizeof(__m128) == 0) {
        for (; i + 4 <= elements; i += 4) _mm_stream_ps(target + i, _mm_load_ps(tile + i));
    }
#endif
    for (; i < elements; ++i) target[i] = tile[i];
}

LUWU_INLINE void finish_stores() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

}  // namespace luwu::kernels
