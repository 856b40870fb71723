#include "pipeline/optimizers.h"

#include <pthread.h>
#include <sched.h>

#include "pipeline/keeping.h"
#include "pipeline/point_writes.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

namespace {

void bind(std::thread& thread, const std::vector<int>& processors) {
    if (processors.empty()) return;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &allowed);
    pthread_setaffinity_np(thread.native_handle(), sizeof allowed, &allowed);  // a refusal changes speed only
}

}  // namespace

Optimizers::Optimizers(Shared& shared)
    : shared_(shared), ready_(shared.settings.nodes.count()), queues_(shared.settings.nodes.count()) {}

void Optimizers::start() {
    const auto places = schedule::place_threads(shared_.settings.nodes.nodes, shared_.settings.optimizer_threads);
    for (const schedule::ThreadPlace& place : places) {
        threads_.emplace_back([this, node = place.node] { loop(node); });
        bind(threads_.back(), place.processors);
    }
}

void Optimizers::stop() {
    {
        const std::lock_guard lock(shared_.mutex);
        stopping_ = true;
    }
    for (std::condition_variable& ready : ready_) ready.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Optimizers::add(const Work& work) {
    // Keeping a gradient is short, and the decision on its step waits for it.
    const bool first = work.kind == Work::Kind::keep;
    if (const auto node = queues_.add(shared_.settings.nodes.of_chunk(work.chunk), work, first)) {
        ready_[*node].notify_one();
    }
}

void Optimizers::drop_given_up() {
    queues_.erase_if([this](const Work& work) {
        if (!shared_.step().given_up(shared_.place(work.chunk).block)) return false;
        shared_.parts.keeping->drop(work.chunk);
        return true;
    });
}

std::optional<Work> Optimizers::wait_for_work(std::unique_lock<std::mutex>& lock, std::uint32_t node) {
    while (!stopping_) {
        if (const auto work = queues_.take(node)) return work;
        queues_.begin_wait(node);
        ready_[node].wait(lock);
        queues_.end_wait(node);
    }
    return std::nullopt;
}

void Optimizers::loop(std::uint32_t node) {
    pthread_setname_np(pthread_self(), "luwu-5-update");
    std::unique_lock lock(shared_.mutex);
    while (const auto work = wait_for_work(lock, node)) {
        const std::uint32_t chunk = work->chunk;
        const bool keeps = work->kind == Work::Kind::keep;
        if (shared_.step().is_void(shared_.place(chunk).block)) {
            if (keeps || shared_.step().clipping.speculates()) shared_.parts.keeping->give_up(chunk, !keeps);
            if (!keeps) shared_.parts.updates->chunk_updated(chunk, false);
            continue;
        }
        lock.unlock();
        carry_out(*work);
        lock.lock();
    }
}

void Optimizers::carry_out(const Work& work) {
    switch (work.kind) {
        case Work::Kind::update:
            return shared_.parts.updates->update_one(work.chunk);
        case Work::Kind::keep:
            return shared_.parts.keeping->keep_one(work.chunk);
        case Work::Kind::seal:
            return shared_.parts.updates->seal_one(work.chunk);
        case Work::Kind::copy:
            return shared_.parts.points->copy_one(work.chunk);
    }
}

}  // namespace luwu::pipeline
