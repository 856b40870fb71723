#include "pipeline/io_stage.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace luwu::pipeline {

namespace {

class BusyTime {
  public:
    explicit BusyTime(std::atomic<std::uint64_t>& total) : total_(total), begin_(std::chrono::steady_clock::now()) {}
    BusyTime(const BusyTime&) = delete;
    BusyTime& operator=(const BusyTime&) = delete;
    ~BusyTime() {
        const auto spent = std::chrono::steady_clock::now() - begin_;
        total_.fetch_add(
            static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()),
            std::memory_order_relaxed);
    }

  private:
    std::atomic<std::uint64_t>& total_;
    std::chrono::steady_clock::time_point begin_;
};

}  // namespace

IoStage::IoStage(std::string name, std::unique_ptr<store::IoEngine> engine, const trace::Recorder& recorder,
                 std::function<void(IoTask&)> done)
    : name_(std::move(name)), engine_(std::move(engine)), recorder_(recorder), done_(std::move(done)), thread_([this] {
          run();
      }) {}

IoStage::~IoStage() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    engine_->wake();
    thread_.join();
}

void IoStage::submit(std::unique_ptr<IoTask> task) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(task));
    }
    engine_->wake();
}

void IoStage::post(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    engine_->wake();
}

bool IoStage::take_work() {
    std::unique_lock lock(mutex_);
    while (!jobs_.empty()) {
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        {
            const BusyTime busy(busy_nanoseconds_);
            job();
        }
        lock.lock();
    }
    while (!queue_.empty() && in_flight_.size() < engine_->depth()) {
        in_flight_.push_back(std::move(queue_.front()));
        queue_.pop_front();
        in_flight_.back()->begun_ns = recorder_.begin();
        engine_->submit(in_flight_.back()->request);
    }
    return !(stopping_ && queue_.empty() && in_flight_.empty() && jobs_.empty());
}

void IoStage::wait(std::vector<store::IoRequest*>& completed) {
    if (in_flight_.empty()) return engine_->wait(completed);
    const BusyTime busy(busy_nanoseconds_);
    engine_->wait(completed);
}

void IoStage::run() {
    pthread_setname_np(pthread_self(), name_.c_str());
    std::vector<store::IoRequest*> completed;
    while (take_work()) {
        completed.clear();
        wait(completed);
        for (store::IoRequest* request : completed) {
            const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                            [request](const auto& task) { return &task->request == request; });
            const std::unique_ptr<IoTask> task = std::move(*found);
            in_flight_.erase(found);
            done_(*task);
        }
    }
}

}  // namespace luwu::pipeline
