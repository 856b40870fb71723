#include "fabric/shm/streams.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "fabric/core/clock.h"

namespace luwu::fabric {

namespace {
constexpr std::chrono::milliseconds kIdleWait{1000};  // only bounds a lost wake-up; requests ring the doorbell
}

Streams::Streams(std::uint32_t workers, const std::vector<std::uint64_t>& block_bytes)
    : workers_(workers),
      file_("luwu-control", control_bytes(workers, static_cast<std::uint32_t>(block_bytes.size()))),
      memory_(file_.descriptor(), MapMode::shared),
      control_(new (memory_.data()) ControlArea) {
    control_->workers = workers;
    control_->blocks = static_cast<std::uint32_t>(block_bytes.size());
    std::copy(block_bytes.begin(), block_bytes.end(), block_bytes_table(*control_));
    for (std::uint32_t rank = 0; rank < workers; ++rank) new (&worker_area(*control_, rank)) WorkerArea;
    for (auto& rings : rings_) rings.resize(workers);
}

void Streams::start(Handler handle, Look look) {
    handle_ = std::move(handle);
    look_ = std::move(look);
    for (const Stream stream : {Stream::parameters, Stream::gradients}) {
        threads_.emplace_back([this, stream] { serve(stream); });
    }
}

void Streams::stop() {
    stopping_ = true;
    wake(Stream::parameters);
    wake(Stream::gradients);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void Streams::wake(Stream stream) const {
    auto& doorbell = control_->doorbells[static_cast<std::size_t>(stream)];
    doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(doorbell);
}

void Streams::close(std::uint32_t rank) {
    for (auto& rings : rings_) {
        const std::lock_guard lock(rings[rank].mutex);
        rings[rank].open = false;
    }
}

void Streams::open(std::uint32_t rank) {
    const std::scoped_lock lock(rings_[0][rank].mutex, rings_[1][rank].mutex);
    new (&worker_area(*control_, rank)) WorkerArea;
    for (auto& rings : rings_) {
        rings[rank].next = 1;
        rings[rank].open = true;
    }
}

void Streams::serve(Stream stream) {
    pthread_setname_np(pthread_self(), stream == Stream::parameters ? "luwu-2-push" : "luwu-3-pull");
    const auto index = static_cast<std::size_t>(stream);
    while (!stopping_) {
        const std::uint32_t seen = control_->doorbells[index].load(std::memory_order_acquire);
        if (stream == Stream::parameters) look_();
        bool idle = true;
        for (std::uint32_t rank = 0; rank < workers_; ++rank) idle = !serve_ring(stream, rank) && idle;
        if (idle) futex_wait(control_->doorbells[index], seen, kIdleWait);
    }
}

// Handles the requests that the ring has; false: none.
bool Streams::serve_ring(Stream stream, std::uint32_t rank) {
    const auto index = static_cast<std::size_t>(stream);
    Served& served = rings_[index][rank];
    RequestRing& ring = worker_area(*control_, rank).rings[index];
    const std::lock_guard lock(served.mutex);
    bool any = false;
    while (served.open) {
        Request& request = ring.requests[served.next % kRingRequests];
        if (request.state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(RequestState::posted) ||
            request.sequence != served.next) {
            break;
        }
        ++served.next;
        handle_(rank, request);
        any = true;
    }
    return any;
}

void Streams::reply(Request& request, bool ok, std::int64_t result, double squares) {
    request.result = result;
    request.squares = squares;
    request.done_ns = monotonic_ns();
    request.state.store(static_cast<std::uint32_t>(ok ? RequestState::done : RequestState::failed),
                        std::memory_order_release);
    futex_wake(request.state);
}

void Streams::announce_failure(const Error& error) const {
    const std::string text = error.what();
    const std::size_t length = std::min(text.size(), control_->failure_text.size() - 1);
    std::memcpy(control_->failure_text.data(), text.data(), length);
    control_->failure_text[length] = '\0';
    control_->failed.store(1 + static_cast<std::uint32_t>(error.kind()), std::memory_order_release);
}

}  // namespace luwu::fabric
