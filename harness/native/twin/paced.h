// Time that passes on a clock of its own, so many seconds in one of ours.
#pragma once

#include <chrono>
#include <thread>

namespace luwu::twin {

class Paced {
  public:
    // `seconds_per_second`: 0: no time passes.
    explicit Paced(double seconds_per_second) : seconds_per_second_(seconds_per_second) {}

    // A thread wakes late; the time that it is late by is not counted against what comes right behind.
    void spend(double seconds) {
        if (seconds_per_second_ <= 0) return;
        const std::chrono::duration<double> taken(seconds / seconds_per_second_);
        const auto now = std::chrono::steady_clock::now();
        const auto begin = now - busy_until_ < std::chrono::milliseconds(1) ? busy_until_ : now;
        busy_until_ = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(taken);
        std::this_thread::sleep_until(busy_until_);
    }

  private:
    double seconds_per_second_;
    std::chrono::steady_clock::time_point busy_until_;
};

}  // namespace luwu::twin
