// A full disk pauses a run: a write that finds no room waits, and is tried again until there is room or time is over.
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

// The room that a paused run waits for.
struct RoomWait {
    std::string folder;
    std::uint64_t needed_bytes = 0;  // at least; 0: nobody knows
    std::chrono::system_clock::time_point until;
};

// Retries writes that find no room. Any thread may call it.
class Room {
  public:
    explicit Room(std::chrono::nanoseconds at_most) : at_most_(at_most) {}

    // Calls `attempt` until it does not throw Error(no_space), at most for `at_most` after its first such error. After
    // that time, and after stop(), throws that error. Throws any other error, and one that may not be tried again, at
    // once.
    void retry(const std::function<void()>& attempt);
    void stop();  // ends all waits, and lets no other begin
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
