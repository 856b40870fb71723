#include "kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace luwu::kernels {

#if defined(__x86_64__)

namespace {
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kAheadBytes = 1024;
}  // namespace

// No portable form of a store past the cache exists, hence the intrinsics; every x86-64 processor has these.
void copy_past_cache(void* target, const void* source, std::size_t bytes) {
    auto* to = static_cast<std::byte*>(target);
    const auto* from = static_cast<const std::byte*>(source);
    const std::size_t head = std::min(bytes, (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes);
    std::memcpy(to, from, head);
    std::size_t i = head;
    for (; i + kLineBytes <= bytes; i += kLineBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(from + i + kAheadBytes), _MM_HINT_NTA);
        for (std::size_t part = 0; part < kLineBytes; part += sizeof(__m128i)) {
            const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + part));
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + part), value);
        }
    }
    _mm_sfence();  // before anything that announces the copy
    std::memcpy(to + i, from + i, bytes - i);
}

#else

void copy_past_cache(void* target, const void* source, std::size_t bytes) { std::memcpy(target, source, bytes); }

#endif

}  // namespace luwu::kernels
