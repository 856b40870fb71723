// Copies memory that this core will not read again soon.
#pragma once

#include <cstddef>

namespace luwu::kernels {

/// Copies `bytes` from `source` to `target`, which must not overlap, past the cache: what was in it stays, and no line
/// of `target` is read first. On Zen 4 this is 1.5 to 2 times as fast as memcpy for buffers larger than the cache.
void copy_past_cache(void* target, const void* source, std::size_t bytes);

}  // namespace luwu::kernels
