#include "device/engine.h"

#include <algorithm>
#include <string>

#include "fabric/core/clock.h"
#include "store/error.h"

namespace luwu::device {

namespace {

constexpr std::chrono::milliseconds kStopCheck{100};  // how soon a thread that waits for the fabric sees the end
constexpr std::size_t kMostSent = 64;  // pushes without an answer: the fabric forgets handles that are much older

DeviceMemory allocate(const Device& device, const std::function<void()>& make_room, std::uint64_t bytes,
                      const std::string& beside) {
    if (make_room) {
        try {
            return {device, bytes, beside};
        } catch (const Error&) {
            make_room();
        }
    }
    return {device, bytes, beside};
}

}  // namespace

CopyEngine::CopyEngine(EngineSettings settings, fabric::DataPlane& plane)
    : settings_(std::move(settings)),
      plane_(plane),
      device_(settings_.driver, settings_.ordinal),
      window_(device_, settings_.window),
      arena_(device_, settings_.arena),
      in_ring_(settings_.block_bytes, settings_.depth, settings_.kept),
      out_ring_(settings_.block_bytes, settings_.depth),
      places_(settings_.arena.size()),
      in_(device_),
      out_(device_) {
    stats_.pinned_bytes = window_.bytes() + arena_.bytes();
    in_thread_ = std::thread([this] { run(landing_, &CopyEngine::bring_in); });
    try {
        out_thread_ = std::thread([this] { run(leaving_, &CopyEngine::send_out); });
    } catch (...) {  // the system has no thread left
        stop();
        throw;
    }
}

void CopyEngine::stop() {
    {
        const Lock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread* thread : {&in_thread_, &out_thread_}) {
        if (thread->joinable()) thread->join();
    }
}

CopyEngine::~CopyEngine() {
    stop();
    try {  // copies may be under way to memory that is given back next
        const Device::Current current(device_);
        const Mark end(device_);
        for (const OwnStream* stream : {&in_, &out_}) {
            end.record(stream->get());
            end.wait();  // order: copies end before their memory is given back
        }
    } catch (const Error&) {  // a device that failed copies nothing any more
    }
}

bool CopyEngine::request(std::uint32_t block, bool alone, Time at_most) {
    {
        Lock lock(mutex_);
        const auto given_back = [&] { return !giving_back_.contains(block); };
        if (!given_back() && !wait_counted(lock, at_most, given_back)) return false;
    }
    const fabric::DataPlane::Handle handle = plane_.pull(block, alone);
    {
        const Lock lock(mutex_);
        incoming_[block] = {handle, Step::asked};
        landing_.push_back(block);
    }
    changed_.notify_all();
    return true;
}

std::optional<Address> CopyEngine::take(std::uint32_t block, Stream compute, Time at_most) {
    const Device::Current current(device_);
    Lock lock(mutex_);
    caller_waits_ = true;
    changed_.notify_all();
    const bool there = wait_counted(lock, at_most, [&] { return is_there(block); });
    caller_waits_ = false;
    if (!there) return std::nullopt;
    incoming_.at(block).step = Step::taken;
    const Buffer& buffer = *in_buffers_[*in_ring_.buffer_of(block)];
    lock.unlock();
    buffer.filled.hold_back(compute);  // order: the block is read after its copy
    return buffer.memory.address();
}

// A block whose release was interrupted, after which it is wanted again, is asked for again when the first pull is
// over.
bool CopyEngine::is_there(std::uint32_t block) {
    const auto found = incoming_.find(block);
    if (found == incoming_.end()) {
        throw Error(ErrorKind::order, "block " + std::to_string(block) + " was taken and not asked for");
    }
    if (found->second.step == Step::unwanted) found->second.step = Step::asked;
    return found->second.step != Step::asked;
}

bool CopyEngine::release(std::uint32_t block, Stream compute, Time at_most) {
    const Device::Current current(device_);
    Lock lock(mutex_);
    const auto found = incoming_.find(block);
    if (found == incoming_.end()) return true;
    if (found->second.step == Step::taken) {
        const Buffer& buffer = *in_buffers_[*in_ring_.buffer_of(block)];
        lock.unlock();
        buffer.free.record(compute);  // order: the buffer is read before the next copy into it
        lock.lock();
    } else if (found->second.step != Step::copying) {
        found->second.step = Step::unwanted;
        changed_.notify_all();
        return wait(lock, at_most, [&] { return !incoming_.contains(block); });
    }
    in_ring_.vacate(block);
    incoming_.erase(block);
    changed_.notify_all();
    return true;
}

std::optional<Address> CopyEngine::gradient(std::uint32_t block, Stream compute, Time at_most) {
    if (settings_.block_bytes.at(block) > settings_.arena.size()) {  // a frozen block may be larger: it has no gradient
        throw Error(ErrorKind::memory_budget, "gradient arena: expected at least " +
                                                  std::to_string(settings_.block_bytes[block]) +
                                                  " bytes, the size of block " + std::to_string(block) + ", found " +
                                                  std::to_string(settings_.arena.size()) + "; raise the memory budget");
    }
    const Device::Current current(device_);
    Lock lock(mutex_);
    const bool there = wait_counted(lock, at_most, [&] {
        if (out_ring_.choose(block)) return true;
        if (!leaving_.empty()) return false;
        out_ring_.make_room(block);  // the caller itself holds all that there are
        return out_ring_.choose(block).has_value();
    });
    if (!there) return std::nullopt;
    const Buffer* buffer = nullptr;
    try {
        buffer = &buffer_of(lock, out_ring_, out_buffers_, block);
    } catch (const Error&) {
        if (!lock.owns_lock()) lock.lock();
        out_ring_.vacate(block);
        throw;
    }
    lock.unlock();
    buffer->free.hold_back(compute);  // order: the gradient is written after the last copy out of its buffer
    return buffer->memory.address();
}

void CopyEngine::push(std::uint32_t block, Stream compute) {
    const Device::Current current(device_);
    Lock lock(mutex_);
    const Buffer& buffer = *out_buffers_[*out_ring_.buffer_of(block)];
    lock.unlock();
    buffer.filled.record(compute);  // order: the gradient is written before its copy
    lock.lock();
    leaving_.push_back(block);
    changed_.notify_all();
}

void CopyEngine::drop_gradient(std::uint32_t block) {
    const Lock lock(mutex_);
    if (std::find(leaving_.begin(), leaving_.end(), block) == leaving_.end()) out_ring_.vacate(block);
}

bool CopyEngine::settle(Time at_most) {
    Lock lock(mutex_);
    return wait(lock, at_most, [&] {
        return landing_.empty() && giving_back_.empty() && leaving_.empty() &&
               std::all_of(sent_.begin(), sent_.end(), [](const Sent& sent) { return sent.handle.has_value(); });
    });
}

std::vector<Pushed> CopyEngine::take_pushed() {
    const Lock lock(mutex_);
    return std::exchange(pushed_, {});
}

void CopyEngine::answered() {
    const Lock lock(mutex_);
    sent_.clear();
    places_.clear();
}

EngineStats CopyEngine::stats() const {
    const Lock lock(mutex_);
    return stats_;
}

// The first of a queue stays in it until its copy is enqueued.
void CopyEngine::run(std::deque<std::uint32_t>& queue, void (CopyEngine::*handle)(Lock&, std::uint32_t)) {
    guarded([&] {
        const Device::Current current(device_);
        Lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return stopping_ || failure_ != nullptr || !queue.empty(); });
            if (stopping_ || failure_ != nullptr) return;
            (this->*handle)(lock, queue.front());
            if (stopping_) return;
            queue.pop_front();
            changed_.notify_all();
        }
    });
}

void CopyEngine::bring_in(Lock& lock, std::uint32_t block) {
    // The block's place is known when the pull has landed, and not before.
    const std::optional<std::int64_t> offset = wait_for_plane(lock, incoming_.at(block).handle);
    if (!offset) return;
    giving_back_.insert(block);
    const Buffer* buffer = wait_for_buffer(lock, block);
    if (stopping_) return;
    const bool wanted = buffer != nullptr && incoming_.at(block).step == Step::asked;
    lock.unlock();
    if (wanted) {
        copy_in(block, static_cast<std::uint64_t>(*offset), *buffer);
    } else {
        plane_.release(block);
    }
    lock.lock();
    if (!wanted) giving_back_.erase(block);
    Incoming& incoming = incoming_.at(block);
    if (incoming.step == Step::asked) {
        incoming.step = Step::copying;
    } else {
        in_ring_.vacate(block);
        incoming_.erase(block);
    }
}

void CopyEngine::send_out(Lock& lock, std::uint32_t block) {
    Sent* sent = wait_for_place(lock, block);
    if (sent == nullptr) return;
    const Buffer& buffer = *out_buffers_[*out_ring_.buffer_of(block)];
    lock.unlock();
    copy_out(*sent, buffer);
    lock.lock();
    out_ring_.vacate(block);
}

void CopyEngine::copy_in(std::uint32_t block, std::uint64_t offset, const Buffer& buffer) {
    buffer.free.hold_back(in_.get());  // order: a buffer is filled after its last reader
    device_.check(device_.functions().copy_to_device(buffer.memory.address(), settings_.window.data() + offset,
                                                     settings_.block_bytes[block], in_.get()),
                  "copy " + std::to_string(settings_.block_bytes[block]) + " bytes to the device");
    buffer.filled.record(in_.get());       // order: the copy ends before the block is read
    call_after(in_.get(), [this, block] {  // order: the window's place is given back after the copy
        plane_.release(block);
        const Lock lock(mutex_);
        giving_back_.erase(block);
    });
}

void CopyEngine::copy_out(Sent& sent, const Buffer& buffer) {
    const std::uint32_t block = sent.block;
    buffer.filled.hold_back(out_.get());  // order: the gradient is copied after it was written
    device_.check(device_.functions().copy_to_host(settings_.arena.data() + sent.offset, buffer.memory.address(),
                                                   settings_.block_bytes[block], out_.get()),
                  "copy " + std::to_string(settings_.block_bytes[block]) + " bytes from the device");
    buffer.free.record(out_.get());         // order: the copy ends before its buffer is written again
    call_after(out_.get(), [this, &sent] {  // order: the gradient is pushed after its copy
        const fabric::DataPlane::Handle handle = plane_.push(sent.block, sent.offset);
        const Lock lock(mutex_);
        pushed_.push_back({sent.block, handle});
        sent.handle = handle;
    });
}

std::optional<std::int64_t> CopyEngine::wait_for_plane(Lock& lock, fabric::DataPlane::Handle handle) {
    while (!stopping_) {
        lock.unlock();
        const std::optional<std::int64_t> result = plane_.wait(handle, kStopCheck);
        lock.lock();
        if (result) return result;
    }
    return std::nullopt;
}

CopyEngine::Buffer* CopyEngine::wait_for_buffer(Lock& lock, std::uint32_t block) {
    while (!stopping_ && incoming_.at(block).step == Step::asked) {
        if (in_ring_.choose(block)) return &buffer_of(lock, in_ring_, in_buffers_, block);
        if (caller_waits_) {  // and holds all buffers that there are
            in_ring_.make_room(block);
        } else {
            changed_.wait(lock);
        }
    }
    return nullptr;
}

CopyEngine::Sent* CopyEngine::wait_for_place(Lock& lock, std::uint32_t block) {
    while (!stopping_ && failure_ == nullptr) {
        const bool may = sent_.size() < kMostSent;
        if (const auto offset = may ? places_.take(settings_.block_bytes[block]) : std::nullopt) {
            return &sent_.emplace_back(Sent{block, *offset, std::nullopt});
        }
        if (!sent_.front().handle) {
            changed_.wait(lock);
            continue;
        }
        // order: a place in the arena is written after the fabric has read the last gradient there
        if (!wait_for_plane(lock, *sent_.front().handle)) return nullptr;
        sent_.pop_front();
        places_.give_back_oldest();
    }
    return nullptr;
}

// Memory is allocated without the lock: the driver may wait for the device then, and the device for a function that it
// calls here.
CopyEngine::Buffer& CopyEngine::buffer_of(Lock& lock, const Ring& ring, Buffers& buffers, std::uint32_t block) {
    const std::uint32_t number = *ring.buffer_of(block);
    if (number < buffers.size() && buffers[number] != nullptr) return *buffers[number];
    const std::uint64_t bytes = settings_.block_bytes[block];
    const std::string beside = " for a block beside " + std::to_string(stats_.device_bytes) +
                               " of other blocks' buffers; activations have the rest: use a smaller micro_batch_size, "
                               "offload='host' or smaller blocks";
    lock.unlock();
    auto made = std::make_unique<Buffer>(
        Buffer{allocate(device_, settings_.make_room, bytes, beside), Mark(device_), Mark(device_)});
    lock.lock();
    if (buffers.size() <= number) buffers.resize(number + 1);
    buffers[number] = std::move(made);
    stats_.device_bytes += bytes;
    return *buffers[number];
}

void CopyEngine::call_after(Stream stream, std::function<void()> function) {
    Pending* pending = nullptr;
    {
        const Lock lock(mutex_);
        pending = &pending_.emplace_back(Pending{this, std::move(function), {}});
        pending->self = std::prev(pending_.end());
    }
    device_.check(device_.functions().stream_call(stream, &Pending::call, pending), "let a stream call back");
}

void CopyEngine::Pending::call(void* pending) {
    auto& call = *static_cast<Pending*>(pending);
    CopyEngine& engine = *call.engine;
    engine.guarded(call.function);
    {
        const Lock lock(engine.mutex_);
        engine.pending_.erase(call.self);
    }
    engine.changed_.notify_all();
}

void CopyEngine::guarded(const std::function<void()>& work) {
    try {
        work();
    } catch (...) {
        const Lock lock(mutex_);
        if (failure_ == nullptr) failure_ = std::current_exception();
        changed_.notify_all();
    }
}

bool CopyEngine::wait(Lock& lock, Time at_most, const std::function<bool()>& done) {
    bool is_done = false;
    changed_.wait_for(lock, at_most, [&] { return failure_ != nullptr || (is_done = done()); });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return is_done;
}

bool CopyEngine::wait_counted(Lock& lock, Time at_most, const std::function<bool()>& done) {
    const std::uint64_t begun = fabric::monotonic_ns();
    const bool is_done = wait(lock, at_most, done);
    stats_.wait_nanoseconds += fabric::monotonic_ns() - begun;
    plane_.stood_still(begun);
    return is_done;
}

}  // namespace luwu::device
