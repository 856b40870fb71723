// The twin's streams and events. A stream's work is done in order, by a thread of its own, as late as a seed says.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "twin/checker.h"
#include "twin/paced.h"
#include "twin/twin.h"

namespace luwu::twin {

inline constexpr Actor kCaller = 0;  // all threads of the program but those that call functions for a stream
inline constexpr Actor kServer = 1;
inline constexpr Actor kFirstStream = 2;

// State that all streams share: the lock of the twin, the checker, and the knowledge of callers and the server.
struct World {
    std::mutex mutex;
    std::condition_variable changed;
    Checker checker;
    Clock caller;
    Clock server;
    TwinSettings settings{};
};

// A record of an event; a stream that waits for the event waits for the last record at that time.
struct Record {
    bool done = false;
    Clock clock;
};

class StreamTwin {
  public:
    using Work = std::function<void(StreamTwin&)>;

    // `inlined`: the work is done by the thread that enqueues it.
    StreamTwin(World& world, Actor actor, bool inlined);
    ~StreamTwin();  // when all work is done
    StreamTwin(const StreamTwin&) = delete;
    StreamTwin& operator=(const StreamTwin&) = delete;

    void enqueue(Work work);
    [[nodiscard]] Actor actor() const { return actor_; }
    // For work. With the world's lock:
    Clock& clock() { return clock_; }
    void access(std::uintptr_t begin, std::size_t bytes, bool writes, const std::string& what);
    // Without: time passes, that a clocked twin counts.
    void spend(double seconds) { pace_.spend(seconds); }

  private:
    struct Item {
        Work work;
        Clock enqueued;
    };
    void run();
    [[nodiscard]] std::uint32_t most_delay() const;
    void execute(const Item& item);

    World& world_;
    Actor actor_;
    bool inlined_;
    Clock clock_;
    std::mt19937_64 random_;
    Paced pace_;
    std::mutex mutex_;
    std::condition_variable queued_;
    std::deque<Item> queue_;
    bool ending_ = false;
    std::thread thread_;
};

// The clock of the thread that calls: the stream's, in a function that a stream calls.
[[nodiscard]] Clock& clock_of_this_thread(World& world);
void set_clock_of_this_thread(Clock* clock);

}  // namespace luwu::twin
