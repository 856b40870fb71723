// The server's side of the rings: one thread for each of the two streams, which push and pull travel on independently.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "fabric/core/shared_memory.h"
#include "fabric/shm/control.h"

namespace luwu::fabric {

// Control memory, and the threads that take requests from it.
class Streams {
  public:
    using Handler = std::function<void(std::uint32_t rank, Request& request)>;

    // Lays out control memory for these blocks (bytes of each in the window).
    Streams(std::uint32_t workers, const std::vector<std::uint64_t>& block_bytes);
    ~Streams() { stop(); }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // `handle` is called in a stream's thread for each request, in the order of its worker.
    void start(Handler handle);
    void stop();  // requests that come later are not answered

    [[nodiscard]] ControlArea& control() const { return *control_; }
    [[nodiscard]] int descriptor() const { return file_.descriptor(); }
    void announce_failure(const Error& error) const;

    static void reply(Request& request, bool ok, std::int64_t result = 0, double squares = pipeline::kNoSquares);

  private:
    void serve(Stream stream);

    std::uint32_t workers_;
    MemoryFile file_;
    Mapping memory_;
    ControlArea* control_;
    Handler handle_;
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_;
};

}  // namespace luwu::fabric
