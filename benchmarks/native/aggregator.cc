#include "aggregator.h"

#include <string>
#include <utility>

#include "fabric/core/arena.h"
#include "kernels/split.h"
#include "kernels/sum.h"

namespace luwu::bench {

namespace {

std::uint64_t checked_bytes(std::uint64_t elements, std::uint32_t workers, std::uint32_t threads) {
    if (elements == 0 || workers == 0 || threads == 0) {
        throw Error(ErrorKind::invalid, "an aggregator needs at least one element, worker and thread; found " +
                                            std::to_string(elements) + ", " + std::to_string(workers) + " and " +
                                            std::to_string(threads));
    }
    return store::round_up(elements * sizeof(float), store::kPage);
}

}  // namespace

Aggregator::Aggregator(std::uint64_t elements, std::uint32_t workers, std::uint32_t threads)
    : elements_(elements),
      workers_(workers),
      threads_(threads),
      window_file_("luwu-window", checked_bytes(elements, workers, threads)),
      window_(window_file_.descriptor(), fabric::MapMode::shared),
      pushes_(workers, nullptr),
      waiting_pulls_(workers, nullptr),
      unread_(workers, false),
      streams_(workers, {elements * sizeof(float)}) {
    streams_.control().gradient_bytes = window_.bytes();
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
        arena_files_.emplace_back("luwu-arena", window_.bytes() + fabric::kArenaSlackBytes);
        arenas_.emplace_back(arena_files_.back().descriptor(), fabric::MapMode::shared);
    }
    streams_.start([this](std::uint32_t rank, fabric::Request& request) { handle(rank, request); });
}

Aggregator::~Aggregator() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    window_free_.notify_all();
    streams_.announce_failure(Error(ErrorKind::server, "the aggregator was closed"));
    streams_.stop();
}

std::array<int, 3> Aggregator::files_of(std::uint32_t rank) const {
    return {streams_.descriptor(), window_file_.descriptor(), arena_files_.at(rank).descriptor()};
}

void Aggregator::handle(std::uint32_t rank, fabric::Request& request) {
    switch (request.kind) {
        case fabric::RequestKind::push:
            return push(rank, request);
        case fabric::RequestKind::pull:
            return pull(rank, request);
        case fabric::RequestKind::release:
            release();
            return fabric::Streams::reply(request, true);
        default:
            streams_.announce_failure(Error(ErrorKind::invalid, "an aggregator knows push, pull and release only"));
            return fabric::Streams::reply(request, false);
    }
}

void Aggregator::push(std::uint32_t rank, fabric::Request& request) {
    const std::uint64_t bytes = elements_ * sizeof(float);
    std::unique_lock lock(mutex_);
    if (pushes_[rank] != nullptr || request.argument > arenas_[rank].bytes() - bytes) {
        streams_.announce_failure(Error(
            ErrorKind::order, "worker " + std::to_string(rank) + " pushed twice in a round, or beyond its arena"));
        return fabric::Streams::reply(request, false);
    }
    pushes_[rank] = &request;
    if (++arrived_ < workers_) return;
    window_free_.wait(lock, [this] { return reads_left_ == 0 || closing_; });
    if (closing_) return;
    sum();
    arrived_ = 0;
    reads_left_ = workers_;
    for (std::uint32_t worker = 0; worker < workers_; ++worker) {
        fabric::Streams::reply(*std::exchange(pushes_[worker], nullptr), true);
        fabric::Request* waiting = std::exchange(waiting_pulls_[worker], nullptr);
        unread_[worker] = waiting == nullptr;
        if (waiting != nullptr) fabric::Streams::reply(*waiting, true);
    }
}

void Aggregator::pull(std::uint32_t rank, fabric::Request& request) {
    const std::lock_guard lock(mutex_);
    if (unread_[rank]) {
        unread_[rank] = false;
        return fabric::Streams::reply(request, true);
    }
    waiting_pulls_[rank] = &request;
}

void Aggregator::release() {
    const std::lock_guard lock(mutex_);
    if (--reads_left_ == 0) window_free_.notify_all();
}

void Aggregator::sum() {
    auto* out = reinterpret_cast<float*>(window_.data());
    kernels::split(elements_, threads_, [&](std::size_t first, std::size_t count) {
        std::vector<const void*> buffers;
        for (std::uint32_t rank = 0; rank < workers_; ++rank) {
            buffers.push_back(arenas_[rank].data() + pushes_[rank]->argument + first * sizeof(float));
        }
        const float scale = 1.0F / static_cast<float>(workers_);
        kernels::sum_gradients(out + first, {buffers.data(), workers_, kernels::Dtype::float32, scale}, count);
    });
}

}  // namespace luwu::bench
