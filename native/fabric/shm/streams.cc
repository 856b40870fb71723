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
}

void Streams::start(Handler handle) {
    handle_ = std::move(handle);
    for (const Stream stream : {Stream::parameters, Stream::gradients}) {
        threads_.emplace_back([this, stream] { serve(stream); });
    }
}

void Streams::stop() {
    stopping_ = true;
    for (auto& doorbell : control_->doorbells) {
        doorbell.fetch_add(1, std::memory_order_release);
        futex_wake(doorbell);
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void Streams::serve(Stream stream) {
    pthread_setname_np(pthread_self(), stream == Stream::parameters ? "luwu-2-push" : "luwu-3-pull");
    const auto index = static_cast<std::size_t>(stream);
    std::vector<std::uint64_t> next(workers_, 1);
    while (!stopping_) {
        const std::uint32_t seen = control_->doorbells[index].load(std::memory_order_acquire);
        bool idle = true;
        for (std::uint32_t rank = 0; rank < workers_; ++rank) {
            RequestRing& ring = worker_area(*control_, rank).rings[index];
            Request* request = &ring.requests[next[rank] % kRingRequests];
            while (request->state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(RequestState::posted) &&
                   request->sequence == next[rank]) {
                handle_(rank, *request);
                idle = false;
                request = &ring.requests[++next[rank] % kRingRequests];
            }
        }
        if (idle) futex_wait(control_->doorbells[index], seen, kIdleWait);
    }
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
