// The server's side of the rings: one thread for each of the two streams, which push and pull travel on independently.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fabric/core/shared_memory.h"
#include "fabric/shm/control.h"

namespace luwu::fabric {

// Control memory, and the threads that take requests from it.
class Streams {
  public:
    using Handler = std::function<void(std::uint32_t rank, Request& request)>;
    using Look = std::function<void()>;

    // Lays out control memory for these blocks (bytes of each in the window).
    Streams(std::uint32_t workers, const std::vector<std::uint64_t>& block_bytes);
    ~Streams() { stop(); }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // `handle` is called in a stream's thread for each request, in the order of its worker. `look` is called in the
    // parameters' thread before it looks at its rings.
    void start(Handler handle, Look look = [] {});
    void stop();  // requests that come later are not answered
    // Takes no more requests from this worker's rings; returns when none of it is in the handler.
    void close(std::uint32_t rank);
    // Empties the closed rings, and serves them from the front. No request of theirs may be under way.
    void open(std::uint32_t rank);
    void wake(Stream stream) const;  // its thread looks at its rings again

    [[nodiscard]] ControlArea& control() const { return *control_; }
    [[nodiscard]] int descriptor() const { return file_.descriptor(); }
    void announce_failure(const Error& error) const;

    static void reply(Request& request, bool ok, std::int64_t result = 0, double squares = pipeline::kNoSquares);

  private:
    // A ring as its thread reads it.
    struct Served {
        std::mutex mutex;  // held while a request of the ring is handled
        std::uint64_t next = 1;
        bool open = true;
    };

    void serve(Stream stream);
    [[nodiscard]] bool serve_ring(Stream stream, std::uint32_t rank);

    std::uint32_t workers_;
    MemoryFile file_;
    Mapping memory_;
    ControlArea* control_;
    Handler handle_;
    Look look_;
    std::array<std::deque<Served>, 2> rings_;  // by Stream, then by rank
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_;
};

}  // namespace luwu::fabric
