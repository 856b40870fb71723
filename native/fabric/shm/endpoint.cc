#include "fabric/shm/endpoint.h"

#include <poll.h>

#include <algorithm>
#include <string>

#include "fabric/core/clock.h"
#include "store/error.h"

namespace luwu::fabric {

namespace {

constexpr const char* kWhat = "this session with a server";
constexpr std::chrono::milliseconds kLivenessCheck{100};
constexpr int kStreamBit = 62;  // handles: stream number above, sequence below

Handle make_handle(Stream stream, std::uint64_t sequence) {
    return static_cast<Handle>((static_cast<std::uint64_t>(stream) << kStreamBit) | sequence);
}
Stream stream_of(Handle handle) { return static_cast<Stream>(static_cast<std::uint64_t>(handle) >> kStreamBit); }
std::uint64_t sequence_of(Handle handle) {
    return static_cast<std::uint64_t>(handle) & ((std::uint64_t{1} << kStreamBit) - 1);
}

ControlArea& checked_control(const Mapping& memory) {
    auto& control = *reinterpret_cast<ControlArea*>(memory.data());
    if (memory.bytes() < sizeof(ControlArea) || control.magic != kControlMagic) {
        throw Error(ErrorKind::server,
                    "the server's control memory has another layout than this LuWu expects; run server "
                    "and workers from the same installation");
    }
    return control;
}

RequestState state_of(const Request& request) {
    return static_cast<RequestState>(request.state.load(std::memory_order_acquire));
}

}  // namespace

Endpoint::Endpoint(const EndpointFiles& files, std::uint32_t rank, MapMode window_mode, std::uint64_t mapped_bytes)
    : liveness_(files.liveness),
      control_memory_(files.control, MapMode::shared),
      control_(checked_control(control_memory_)),
      area_(worker_area(control_, rank)),
      window_(files.window, window_mode),
      arena_(files.arena, MapMode::shared),
      arena_start_(arena_start(rank)),
      held_(control_.blocks),
      most_mapped_bytes_(mapped_bytes) {}

std::uint64_t Endpoint::register_buffer(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (registered_bytes_ + bytes > arena_bytes()) {
        throw Error(ErrorKind::invalid, "cannot register " + std::to_string(bytes) + " bytes: the gradient arena has " +
                                            std::to_string(arena_bytes() - registered_bytes_) + " of " +
                                            std::to_string(arena_bytes()) + " left");
    }
    const std::uint64_t offset = registered_bytes_;
    registered_bytes_ = store::round_up(registered_bytes_ + bytes, store::kPage);
    return offset;
}

Request& Endpoint::slot(Stream stream, std::uint64_t sequence) {
    return area_.rings[static_cast<std::size_t>(stream)].requests[sequence % kRingRequests];
}

Handle Endpoint::post(Stream stream, RequestKind kind, std::uint32_t block, std::uint64_t argument,
                      std::uint32_t flag) {
    process_.require(kWhat);
    const std::lock_guard lock(mutex_);
    const std::uint64_t sequence = next_sequence_[static_cast<std::size_t>(stream)]++;
    Request& request = slot(stream, sequence);
    if (state_of(request) == RequestState::posted) {  // the ring is full: the server has not done the oldest request
        const std::uint64_t begin = monotonic_ns();
        while (state_of(request) == RequestState::posted) {
            futex_wait(request.state, static_cast<std::uint32_t>(RequestState::posted), kLivenessCheck);
            check_server();
        }
        waited_.add({begin, request.done_ns});
    }
    const auto ring = static_cast<std::size_t>(stream);
    count_request(ring, sequence % kRingRequests);  // the request before in this slot, if nobody waited for it
    if (busy_.full() || waited_.full()) count_times();
    request.kind = kind;
    request.sequence = sequence;
    request.block = block;
    request.flag = flag;
    request.argument = argument;
    request.posted_ns = monotonic_ns();
    uncounted_[ring][sequence % kRingRequests] = kind != RequestKind::release;
    if (kind == RequestKind::pull) stats_.bytes_pulled += bytes_of(block);
    if (kind == RequestKind::push) stats_.bytes_pushed += bytes_of(block);
    request.state.store(static_cast<std::uint32_t>(RequestState::posted), std::memory_order_release);
    auto& doorbell = control_.doorbells[ring];
    doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(doorbell);
    return make_handle(stream, sequence);
}

void Endpoint::begin(const std::vector<pipeline::GroupSettings>& groups, const pipeline::GradientSettings& gradient) {
    process_.require(kWhat);
    if (groups.size() > kMaximumGroups) {
        throw Error(ErrorKind::invalid, "the optimizer has " + std::to_string(groups.size()) +
                                            " parameter groups; at most " + std::to_string(kMaximumGroups) +
                                            " are supported: merge groups with equal settings");
    }
    std::copy(groups.begin(), groups.end(), area_.groups.begin());
    area_.max_norm = gradient.max_norm.value_or(0);
    area_.loss_scale = gradient.loss_scale ? gradient.loss_scale->scale : 0;
    area_.good_steps = gradient.loss_scale ? gradient.loss_scale->good_steps : 0;
    area_.group_count = static_cast<std::uint32_t>(groups.size());
    // Waited for, because pushes travel on the other stream and must not overtake it.
    const Handle handle = post(Stream::parameters, RequestKind::begin, 0, 0);
    std::optional<std::int64_t> asked;
    while (!asked) asked = wait(handle, kLivenessCheck);
    trace_request_ = {static_cast<std::uint64_t>(*asked) >> 1U, (*asked & 1) != 0};
}

Handle Endpoint::pull(std::uint32_t block, bool alone) {
    return post(Stream::parameters, RequestKind::pull, block, 0, alone ? 1 : 0);
}

void Endpoint::release(std::uint32_t block) {
    process_.require(kWhat);
    {
        const std::lock_guard lock(mutex_);
        Held& held = held_[block];
        if (held.count == 0) {
            throw Error(ErrorKind::order, "block " + std::to_string(block) + " was released but is not held");
        }
        if (--held.count == 0) unmap_surplus(held.offset);
    }
    post(Stream::parameters, RequestKind::release, block, 0);
}

// Keeps the worker's resident memory bounded, though its pages are the server's, and its own writes from outliving the
// release. Which blocks stay does not matter while they stay the same ones: blocks come in turn, there and back.
void Endpoint::unmap_surplus(std::uint64_t offset) {
    const auto mapped = mapped_.find(offset);
    const std::uint64_t bytes = mapped->second;
    if (mapped_bytes_ <= most_mapped_bytes_ && !window_.written(offset, bytes)) return;
    window_.forget(offset, bytes);
    mapped_bytes_ -= bytes;
    mapped_.erase(mapped);
}

Handle Endpoint::push(std::uint32_t block, std::uint64_t arena_offset) {
    return post(Stream::gradients, RequestKind::push, block, arena_start_ + arena_offset);
}

Handle Endpoint::vote(bool roll_back) { return post(Stream::gradients, RequestKind::vote, 0, 0, roll_back ? 1 : 0); }

Handle Endpoint::initialise(std::uint32_t block, std::uint64_t arena_offset) {
    return post(Stream::gradients, RequestKind::initialise, block, arena_start_ + arena_offset);
}

Handle Endpoint::finish_initialise() { return post(Stream::gradients, RequestKind::finish_initialise, 0, 0); }

bool Endpoint::done(Handle handle) {
    const Request& request = slot(stream_of(handle), sequence_of(handle));
    return request.sequence != sequence_of(handle) || state_of(request) != RequestState::posted;
}

std::optional<std::int64_t> Endpoint::wait(Handle handle, std::chrono::milliseconds at_most, bool stands_still) {
    process_.require(kWhat);
    Request& request = slot(stream_of(handle), sequence_of(handle));
    const std::uint64_t begin = monotonic_ns();
    const std::uint64_t until = begin + static_cast<std::uint64_t>(at_most.count()) * 1'000'000U;
    while (request.sequence == sequence_of(handle) && state_of(request) == RequestState::posted) {
        futex_wait(request.state, static_cast<std::uint32_t>(RequestState::posted), std::min(kLivenessCheck, at_most));
        if (state_of(request) == RequestState::posted) check_server();
        if (monotonic_ns() >= until) break;
    }
    const std::lock_guard lock(mutex_);
    if (request.sequence != sequence_of(handle)) {
        throw Error(ErrorKind::order, "a handle was waited for after " + std::to_string(kRingRequests) +
                                          " later requests; wait for each request in time");
    }
    const RequestState state = state_of(request);
    // The wait ends when the request was done, not when this thread got a processor again: that time is no
    // communication.
    if (stands_still) waited_.add({begin, state == RequestState::posted ? monotonic_ns() : request.done_ns});
    if (state == RequestState::posted) return std::nullopt;
    if (state == RequestState::failed) {
        check_server();
        throw Error(ErrorKind::server, "the server refused a request and gave no reason");
    }
    if (state == RequestState::done) finished(stream_of(handle), request);
    return request.result;
}

std::uint64_t Endpoint::bytes_of(std::uint32_t block) const {
    return block < control_.blocks ? block_bytes_table(control_)[block] : 0;
}

void Endpoint::finished(Stream stream, Request& request) {
    count_request(static_cast<std::size_t>(stream), request.sequence % kRingRequests);
    request.state.store(static_cast<std::uint32_t>(RequestState::idle), std::memory_order_relaxed);  // held once
    if (request.kind == RequestKind::vote) squares_ = request.squares;
    if (request.kind != RequestKind::pull) return;
    const auto offset = static_cast<std::uint64_t>(request.result);
    const std::uint64_t bytes = store::round_up(bytes_of(request.block), store::kPage);
    held_[request.block].offset = offset;
    ++held_[request.block].count;
    std::uint64_t& mapped = mapped_[offset];
    mapped_bytes_ += std::max(mapped, bytes) - mapped;
    mapped = std::max(mapped, bytes);
}

void Endpoint::count_request(std::size_t stream, std::size_t slot) {
    bool& uncounted = uncounted_[stream][slot];
    const Request& request = area_.rings[stream].requests[slot];
    if (uncounted) busy_.add({request.posted_ns, request.done_ns});
    uncounted = false;
}

void Endpoint::count_times() {
    std::vector<Interval> open;
    for (std::size_t stream = 0; stream < uncounted_.size(); ++stream) {
        for (std::size_t slot = 0; slot < kRingRequests; ++slot) {
            const Request& request = area_.rings[stream].requests[slot];
            if (!uncounted_[stream][slot]) continue;
            if (state_of(request) == RequestState::posted) {
                open.push_back({request.posted_ns, 0});
            } else {
                count_request(stream, slot);
            }
        }
    }
    const std::uint64_t now = monotonic_ns();
    stats_.busy_nanoseconds = busy_.count(now, open);
    stats_.wait_nanoseconds = waited_.count(now);
}

void Endpoint::check_server() const {
    const std::uint32_t failed = control_.failed.load(std::memory_order_acquire);
    if (failed != 0) throw Error(static_cast<ErrorKind>(failed - 1), control_.failure_text.data());
    if (liveness_ < 0) return;
    pollfd socket{liveness_, POLLRDHUP, 0};
    if (poll(&socket, 1, 0) > 0 && (socket.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0) {
        throw Error(ErrorKind::server, "the server ended; run again to resume at the last committed step");
    }
}

double Endpoint::squares() const {
    const std::lock_guard lock(mutex_);
    return squares_;
}

void Endpoint::count_wait(std::uint64_t begun_ns, std::uint64_t waited_since_ns) {
    const std::uint64_t now = monotonic_ns();
    const std::lock_guard lock(mutex_);
    busy_.add({begun_ns, now});
    waited_.add({waited_since_ns, now});
}

EndpointStats Endpoint::stats() {
    const std::lock_guard lock(mutex_);
    count_times();
    return stats_;
}

}  // namespace luwu::fabric
