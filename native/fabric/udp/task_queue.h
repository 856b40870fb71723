// A thread that runs what others give it, in their order: for calls that must not be made where their cause is seen,
// because a lock is held there.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace luwu::fabric {

class TaskQueue {
  public:
    explicit TaskQueue(const char* thread_name)
        : thread_([this, thread_name] {
              pthread_setname_np(pthread_self(), thread_name);
              run();
          }) {}
    ~TaskQueue() { stop(); }
    TaskQueue(const TaskQueue&) = delete;
    TaskQueue& operator=(const TaskQueue&) = delete;

    // Never waits. After stop(), tasks are dropped.
    void post(std::function<void()> task) {
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return;
            tasks_.push_back(std::move(task));
        }
        ready_.notify_one();
    }

    // Ends the thread after the task it is in; those that wait are dropped.
    void stop() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            tasks_.clear();
        }
        ready_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            ready_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
            if (stopping_) return;
            const std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable ready_;
    std::deque<std::function<void()>> tasks_;
    bool stopping_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::fabric
