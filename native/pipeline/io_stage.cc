#include "pipeline/io_stage.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace luwu::pipeline {

IoStage::IoStage(std::string name, std::unique_ptr<store::IoEngine> engine, std::function<void(IoTask&)> done)
    : name_(std::move(name)), engine_(std::move(engine)), done_(std::move(done)), thread_([this] { run(); }) {}

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
        job();
        lock.lock();
    }
    while (!queue_.empty() && in_flight_.size() < engine_->depth()) {
        in_flight_.push_back(std::move(queue_.front()));
        queue_.pop_front();
        engine_->submit(in_flight_.back()->request);
    }
    return !(stopping_ && queue_.empty() && in_flight_.empty() && jobs_.empty());
}

void IoStage::run() {
    pthread_setname_np(pthread_self(), name_.c_str());
    std::vector<store::IoRequest*> completed;
    while (take_work()) {
        completed.clear();
        engine_->wait(completed);
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
