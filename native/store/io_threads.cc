// The twin of io_uring_engine.cc that needs nothing but threads.
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "store/io_engine.h"

namespace luwu::store {

namespace {

class ThreadIoEngine final : public IoEngine {
  public:
    explicit ThreadIoEngine(std::uint32_t depth) : depth_(depth) {
        for (std::uint32_t i = 0; i < depth; ++i) threads_.emplace_back([this] { serve(); });
    }
    ~ThreadIoEngine() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        work_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    ThreadIoEngine(const ThreadIoEngine&) = delete;
    ThreadIoEngine& operator=(const ThreadIoEngine&) = delete;

    void submit(IoRequest& request) override {
        {
            const std::lock_guard lock(mutex_);
            waiting_.push_back(&request);
        }
        work_.notify_one();
    }

    void wait(std::vector<IoRequest*>& completed) override {
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return woken_ || !completed_.empty(); });
        woken_ = false;
        completed.insert(completed.end(), completed_.begin(), completed_.end());
        completed_.clear();
    }

    void wake() override {
        {
            const std::lock_guard lock(mutex_);
            woken_ = true;
        }
        done_.notify_one();
    }

    [[nodiscard]] std::uint32_t depth() const override { return depth_; }
    [[nodiscard]] const char* name() const override { return "threads"; }

  private:
    void serve() {
        pthread_setname_np(pthread_self(), "luwu-disk");
        std::unique_lock lock(mutex_);
        while (true) {
            work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            IoRequest* request = waiting_.front();
            waiting_.pop_front();
            lock.unlock();
            transfer_now(*request);
            lock.lock();
            completed_.push_back(request);
            done_.notify_one();
        }
    }

    std::uint32_t depth_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    std::deque<IoRequest*> waiting_;
    std::vector<IoRequest*> completed_;
    bool woken_ = false;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_io_engine(std::uint32_t depth) { return std::make_unique<ThreadIoEngine>(depth); }

}  // namespace luwu::store
