#include "pipeline/optimizers.h"

#include <pthread.h>
#include <sched.h>

#include "pipeline/keeping.h"
#include "pipeline/point_writes.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

namespace {

// Keeps every thread on one processor where there is one thread for each processor that this process may use. An update
// then takes equal parts of all processors at the same time. A worker on the same machine, whose threads wait for each
// other, loses half as much as when two updates queue up on one processor: 3 % of a step on two.
void spread_over_processors(std::vector<std::thread>& threads) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (CPU_COUNT(&allowed) != static_cast<int>(threads.size())) return;
    std::size_t processor = 0;
    for (std::thread& thread : threads) {
        while (!CPU_ISSET(processor, &allowed)) ++processor;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor++, &one);
        pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);  // a refusal changes speed only
    }
}

}  // namespace

void Optimizers::start() {
    for (std::uint32_t i = 0; i < shared_.settings.optimizer_threads; ++i) {
        threads_.emplace_back([this] { loop(); });
    }
    spread_over_processors(threads_);
}

void Optimizers::stop() {
    {
        const std::lock_guard lock(shared_.mutex);
        stopping_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Optimizers::add(const Work& work) {
    // Keeping a gradient is short, and the decision on its step waits for it.
    work.kind == Work::Kind::keep ? queue_.push_front(work) : queue_.push_back(work);
    ready_.notify_one();
}

void Optimizers::drop_given_up() {
    std::erase_if(queue_, [this](const Work& work) {
        if (!shared_.step().given_up(shared_.place(work.chunk).block)) return false;
        shared_.parts.keeping->drop(work.chunk);
        return true;
    });
}

void Optimizers::loop() {
    pthread_setname_np(pthread_self(), "luwu-5-update");
    std::unique_lock lock(shared_.mutex);
    while (true) {
        ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        const auto [chunk, kind] = queue_.front();
        queue_.pop_front();
        const bool keeps = kind == Work::Kind::keep;
        if (shared_.step().is_void(shared_.place(chunk).block)) {
            if (keeps || shared_.step().clipping.speculates()) shared_.parts.keeping->give_up(chunk, !keeps);
            if (!keeps) shared_.parts.updates->chunk_updated(chunk, false);
            continue;
        }
        lock.unlock();
        switch (kind) {
            case Work::Kind::update:
                shared_.parts.updates->update_one(chunk);
                break;
            case Work::Kind::keep:
                shared_.parts.keeping->keep_one(chunk);
                break;
            case Work::Kind::seal:
                shared_.parts.updates->seal_one(chunk);
                break;
            case Work::Kind::copy:
                shared_.parts.points->copy_one(chunk);
                break;
        }
        lock.lock();
    }
}

}  // namespace luwu::pipeline
