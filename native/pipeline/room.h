// A full disk pauses a run: what finds no room waits, and is tried again until there is room or the time is over.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "store/error.h"

namespace luwu::pipeline {

// What a paused run waits for.
struct RoomWait {
    std::string folder;
    std::uint64_t needed_bytes = 0;  // at least; 0: nobody knows
    std::chrono::system_clock::time_point until;
};

// Any thread may call it.
class Room {
  public:
    explicit Room(std::chrono::nanoseconds at_most) : at_most_(at_most) {}

    // Calls `attempt`, and again as long as it throws Error(no_space), at most for the time given since it first did.
    // Then, and after stop(), that error is thrown, as any other one is at once. `attempt` may be called any number of
    // times.
    void retry(const std::function<void()>& attempt);
    void stop();  // nobody waits any more
    [[nodiscard]] std::optional<RoomWait> waits() const;

  private:
    [[nodiscard]] bool wait(const Error& error, std::chrono::steady_clock::time_point deadline);

    std::chrono::nanoseconds at_most_;
    mutable std::mutex mutex_;
    std::condition_variable stopped_changed_;
    bool stopped_ = false;
    std::optional<RoomWait> waits_;
};

}  // namespace luwu::pipeline
