#include "twin/streams.h"

#include <chrono>

namespace luwu::twin {

namespace {

thread_local Clock* this_thread = nullptr;

}  // namespace

Clock& clock_of_this_thread(World& world) { return this_thread == nullptr ? world.caller : *this_thread; }
void set_clock_of_this_thread(Clock* clock) { this_thread = clock; }

StreamTwin::StreamTwin(World& world, Actor actor, bool inlined)
    : world_(world),
      actor_(actor),
      inlined_(inlined),
      random_(world.settings.seed + actor),
      pace_(world.settings.seconds_per_second) {
    if (!inlined_) thread_ = std::thread([this] { run(); });
}

StreamTwin::~StreamTwin() {
    if (inlined_) return;
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    queued_.notify_all();
    thread_.join();
}

void StreamTwin::enqueue(Work work) {
    Item item{std::move(work), {}};
    {
        const std::lock_guard lock(world_.mutex);
        Clock& caller = clock_of_this_thread(world_);
        if (this_thread == nullptr) caller.tick(kCaller);
        item.enqueued = caller;
    }
    if (inlined_) {
        execute(item);
        return;
    }
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    queued_.notify_all();
}

void StreamTwin::access(std::uintptr_t begin, std::size_t bytes, bool writes, const std::string& what) {
    world_.checker.access(actor_, clock_, {begin, begin + bytes, writes, what});
}

void StreamTwin::run() {
    while (true) {
        std::unique_lock lock(mutex_);
        queued_.wait(lock, [this] { return ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        const Item item = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        if (const std::uint32_t most = most_delay(); most > 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random_() % (most + 1)));
        }
        execute(item);
    }
}

std::uint32_t StreamTwin::most_delay() const {
    const std::lock_guard lock(world_.mutex);
    return world_.settings.most_delay_microseconds;
}

void StreamTwin::execute(const Item& item) {
    {
        const std::lock_guard lock(world_.mutex);
        clock_.join(item.enqueued);
        clock_.tick(actor_);
    }
    item.work(*this);
}

}  // namespace luwu::twin
