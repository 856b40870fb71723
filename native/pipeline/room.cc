#include "pipeline/room.h"

#include <algorithm>

#include "store/files.h"

namespace luwu::pipeline {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{500};  // between two attempts; no file system reports new room

}  // namespace

void Room::retry(const std::function<void()>& attempt) {
    std::optional<steady_clock::time_point> deadline;
    while (true) {
        try {
            attempt();
            break;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_space || !error.shortage().may_try_again) throw;
            if (!deadline) deadline = steady_clock::now() + at_most_;
            if (!wait(error, *deadline)) throw;
        }
    }
    if (!deadline) return;
    const std::lock_guard lock(mutex_);
    waits_.reset();
}

// Waits until the next attempt. False: the time is over, or stop() was called.
bool Room::wait(const Error& error, steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto now = steady_clock::now();
    if (stopped_ || now >= deadline) {
        waits_.reset();
        return false;
    }
    if (!waits_) {
        const auto left = std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - now);
        waits_ = {store::folder_of(error.shortage().path), error.shortage().bytes,
                  std::chrono::system_clock::now() + left};
    }
    stopped_changed_.wait_until(lock, std::min(deadline, now + kLook), [this] { return stopped_; });
    return true;
}

void Room::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    stopped_changed_.notify_all();
}

std::optional<RoomWait> Room::waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
}

}  // namespace luwu::pipeline
