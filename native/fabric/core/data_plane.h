// The part of the fabric that the copy engine calls, from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace luwu::fabric {

class DataPlane {
  public:
    using Handle = std::int64_t;
    virtual ~DataPlane() = default;

    virtual Handle pull(std::uint32_t block, bool alone) = 0;
    virtual void release(std::uint32_t block) = 0;  // after the pull was waited for
    virtual Handle push(std::uint32_t block, std::uint64_t arena_offset) = 0;
    // A pull's offset in the window; a push's means that its place in the arena may be used again. Nothing if it takes
    // longer. Throws Error as the fabric does.
    virtual std::optional<std::int64_t> wait(Handle handle, std::chrono::milliseconds at_most) = 0;
    // The worker waited for a block or a buffer since then, in the monotonic clock's nanoseconds, until now.
    virtual void stood_still(std::uint64_t since_ns) = 0;
};

}  // namespace luwu::fabric
