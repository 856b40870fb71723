// Copies blocks between host memory that the fabric shares and a device, beside what the device computes.
//
// A pull is copied in as soon as it has landed, and its place in the window is given back when the copy has ended. A
// gradient leaves in one copy, and its push is posted when that has ended. Each direction has a stream and a thread of
// its own. The device orders copies and compute by events: the caller enqueues and goes on, and waits only while a copy
// that it needs cannot be enqueued yet, because the block has not landed or all buffers hold work before it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "device/ring.h"
#include "fabric/core/data_plane.h"

namespace luwu::device {

struct EngineSettings {
    std::shared_ptr<const Driver> driver;
    int ordinal = 0;
    std::vector<std::uint64_t> block_bytes;  // of each block's parameters, and of its gradient
    std::span<std::byte> window;             // what pulled blocks lie in
    std::span<std::byte> arena;              // what gradients are pushed from
    std::uint32_t depth = 3;                 // buffers of each size, in each direction
    std::vector<std::uint32_t> kept;         // blocks that the caller holds for long: each has a buffer more
    // Gives memory of the device back that others hold and do not use, when there is none left for a buffer.
    std::function<void()> make_room;
};

struct EngineStats {
    std::uint64_t pinned_bytes = 0;      // of host memory
    std::uint64_t device_bytes = 0;      // of buffers on the device
    std::uint64_t wait_nanoseconds = 0;  // callers of take() and gradient() stood still
};

struct Pushed {
    std::uint32_t block;
    fabric::DataPlane::Handle handle;
};

class CopyEngine {
  public:
    using Time = std::chrono::milliseconds;

    // Throws Error(device).
    CopyEngine(EngineSettings settings, fabric::DataPlane& plane);
    ~CopyEngine();  // returns when the device has ended every copy
    CopyEngine(const CopyEngine&) = delete;
    CopyEngine& operator=(const CopyEngine&) = delete;

    // Parameters. `compute` is the stream that uses them. What waits returns nothing, or false, when it takes longer
    // than `at_most`; call it again. All throw what the fabric or the device failed with, once one of them has.
    // A pull is posted when the block's last place in the window is given back: before, it would fetch nothing, and the
    // other workers, who fetch together, would be one pull ahead.
    [[nodiscard]] bool request(std::uint32_t block, bool alone, Time at_most);
    [[nodiscard]] std::optional<Address> take(std::uint32_t block, Stream compute, Time at_most);
    // After take(): the work that `compute` has so far is the last that reads the block. Without, it is not wanted any
    // more.
    [[nodiscard]] bool release(std::uint32_t block, Stream compute, Time at_most);

    // Gradients: a place to write a block's to, and, when `compute` has all work that writes it, its push. Throws
    // Error(memory_budget) where the arena is smaller than the block.
    [[nodiscard]] std::optional<Address> gradient(std::uint32_t block, Stream compute, Time at_most);
    void push(std::uint32_t block, Stream compute);
    void drop_gradient(std::uint32_t block);  // it is not pushed; nothing where there is none

    // Returns true when every copy has ended, every place in the window is given back and every push is posted.
    [[nodiscard]] bool settle(Time at_most);
    // The pushes posted since the last call, in their order.
    [[nodiscard]] std::vector<Pushed> take_pushed();
    // The fabric has answered every push so far: the attempt has ended.
    void answered();
    [[nodiscard]] EngineStats stats() const;

  private:
    enum class Step : std::uint8_t { asked, copying, taken, unwanted };  // copying: or copied
    struct Incoming {
        fabric::DataPlane::Handle handle = 0;
        Step step = Step::asked;
    };
    struct Buffer {
        DeviceMemory memory;
        Mark filled;  // in: copied to the device; out: written by compute
        Mark free;    // in: read by compute; out: copied to the host
    };
    struct Sent {
        std::uint32_t block;
        std::uint64_t offset;
        std::optional<fabric::DataPlane::Handle> handle;  // none: its copy has not ended
    };
    using Lock = std::unique_lock<std::mutex>;

    using Buffers = std::vector<std::unique_ptr<Buffer>>;  // by number
    struct Pending {
        CopyEngine* engine = nullptr;
        std::function<void()> function;
        std::list<Pending>::iterator self;
        static void call(void* pending);
    };

    // Each lets the lock go while it waits or copies, and has it when it returns; nothing or null: the engine stops.
    void bring_in(Lock& lock, std::uint32_t block);
    void send_out(Lock& lock, std::uint32_t block);
    [[nodiscard]] std::optional<std::int64_t> wait_for_plane(Lock& lock, fabric::DataPlane::Handle handle);
    [[nodiscard]] Buffer* wait_for_buffer(Lock& lock, std::uint32_t block);
    [[nodiscard]] Sent* wait_for_place(Lock& lock, std::uint32_t block);
    [[nodiscard]] Buffer& buffer_of(Lock& lock, const Ring& ring, Buffers& buffers, std::uint32_t block);

    void stop();  // ends the threads
    void run(std::deque<std::uint32_t>& queue, void (CopyEngine::*handle)(Lock&, std::uint32_t));
    void copy_in(std::uint32_t block, std::uint64_t offset, const Buffer& buffer);
    void copy_out(Sent& sent, const Buffer& buffer);
    void call_after(Stream stream, std::function<void()> function);
    void guarded(const std::function<void()>& work);   // keeps what it throws for the caller
    [[nodiscard]] bool is_there(std::uint32_t block);  // on the device, or its copy is enqueued; with the lock
    [[nodiscard]] bool wait(Lock& lock, Time at_most, const std::function<bool()>& done);
    [[nodiscard]] bool wait_counted(Lock& lock, Time at_most, const std::function<bool()>& done);  // as standing still

    EngineSettings settings_;
    fabric::DataPlane& plane_;
    Device device_;
    PinnedMemory window_;
    PinnedMemory arena_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::exception_ptr failure_;
    bool stopping_ = false;

    Ring in_ring_;
    Buffers in_buffers_;
    std::deque<std::uint32_t> landing_;                     // asked for, in order, whose copies are not enqueued
    std::unordered_map<std::uint32_t, Incoming> incoming_;  // until they are released
    std::set<std::uint32_t> giving_back_;                   // whose places in the window a copy still reads
    bool caller_waits_ = false;                             // in take()

    Ring out_ring_;
    Buffers out_buffers_;
    std::deque<std::uint32_t> leaving_;  // to be pushed, in order, whose copies are not enqueued
    PageRing places_;
    std::list<Sent> sent_;  // by place in the arena
    std::vector<Pushed> pushed_;

    std::list<Pending> pending_;  // what the device calls
    EngineStats stats_;

    OwnStream in_;
    OwnStream out_;
    std::thread in_thread_;
    std::thread out_thread_;
};

}  // namespace luwu::device
