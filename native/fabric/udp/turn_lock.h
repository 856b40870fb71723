// A lock that is given in the order it was asked for: a thread that takes it again and again, as a busy loop does,
// keeps nobody else waiting for more than one of its turns. A mutex promises no such thing.
#pragma once

#include <atomic>
#include <cstdint>

namespace luwu::fabric {

class TurnLock {
  public:
    void lock() {
        const std::uint32_t mine = next_.fetch_add(1, std::memory_order_relaxed);
        for (std::uint32_t now = serving_.load(std::memory_order_acquire); now != mine;
             now = serving_.load(std::memory_order_acquire)) {
            serving_.wait(now, std::memory_order_acquire);
        }
    }
    void unlock() {
        serving_.fetch_add(1, std::memory_order_release);
        serving_.notify_all();  // each waiter waits for a number of its own
    }

  private:
    std::atomic<std::uint32_t> next_{0};
    std::atomic<std::uint32_t> serving_{0};
};

}  // namespace luwu::fabric
