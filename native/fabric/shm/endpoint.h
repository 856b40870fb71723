// A worker's end of the shared-memory fabric: register, push, pull, wait. Functions may be called from any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fabric/core/arena.h"
#include "fabric/core/shared_memory.h"
#include "fabric/shm/control.h"
#include "fabric/shm/covered_time.h"
#include "store/forks.h"

namespace luwu::fabric {

using Handle = std::int64_t;

// Bytes count when they are asked for or handed over, so after a wait for the end of a step all of the step's are
// counted.
struct EndpointStats {
    std::uint64_t bytes_pulled = 0;
    std::uint64_t bytes_pushed = 0;
    std::uint64_t wait_nanoseconds = 0;  // the worker stood still for the fabric
    std::uint64_t busy_nanoseconds = 0;  // something was between post and done; a release is not
};

struct EndpointFiles {
    int control = -1;
    int window = -1;
    int arena = -1;
    int liveness = -1;  // a socket whose other end the server holds, or -1 when the server is in this process
};

class Endpoint {
  public:
    // Maps the files (which the caller closes). `window_mode` shared is for memory that a device copies from.
    // Up to `mapped_bytes` of the window stay mapped: mapping every block anew in every pass cost 3 to 4 % of a step.
    Endpoint(const EndpointFiles& files, std::uint32_t rank, MapMode window_mode,
             std::uint64_t mapped_bytes = std::uint64_t{128} << 20);

    [[nodiscard]] std::byte* window() const { return window_.data(); }
    [[nodiscard]] std::uint64_t window_bytes() const { return window_.bytes(); }
    [[nodiscard]] std::byte* arena() const { return arena_.data() + arena_start_; }
    [[nodiscard]] std::uint64_t arena_bytes() const { return arena_.bytes() - kArenaSlackBytes; }
    [[nodiscard]] std::uint64_t gradient_bytes() const { return control_.gradient_bytes; }
    [[nodiscard]] std::uint64_t mapped_bytes() const { return mapped_bytes_; }

    // Takes the next buffer of the arena, on a cache line, and returns its offset. Throws Error(invalid) when it is
    // full.
    std::uint64_t register_buffer(std::uint64_t bytes);
    // Returns when the server knows them.
    void begin(const std::vector<pipeline::GroupSettings>& groups, const pipeline::GradientSettings& gradient = {});
    // Returns the records that the server asks this worker for, of the attempt that began last.
    [[nodiscard]] pipeline::TraceRequest trace_request() const { return trace_request_; }
    Handle pull(std::uint32_t block, bool alone = false);  // alone: no pull of the step that all workers make
    void release(std::uint32_t block);                     // after the pull was waited for
    Handle push(std::uint32_t block, std::uint64_t arena_offset);
    Handle vote(bool roll_back);
    Handle initialise(std::uint32_t block, std::uint64_t arena_offset);
    Handle finish_initialise();

    [[nodiscard]] bool done(Handle handle);
    // The result, or nothing if it takes longer. Throws Error with the server's kind and text when it failed or ended.
    // `stands_still`: the worker does, which counts.
    [[nodiscard]] std::optional<std::int64_t> wait(Handle handle, std::chrono::milliseconds at_most,
                                                   bool stands_still = true);
    // The squares of the last step that was waited for, as pipeline::Outcome has them.
    [[nodiscard]] double squares() const;
    // Counts communication that is no request: it was under way since `begun_ns`, the worker stood still for it since
    // `waited_since_ns`, and both ended now. Times are monotonic_ns().
    void count_wait(std::uint64_t begun_ns, std::uint64_t waited_since_ns);
    [[nodiscard]] EndpointStats stats();

  private:
    Handle post(Stream stream, RequestKind kind, std::uint32_t block, std::uint64_t argument, std::uint32_t flag = 0);
    [[nodiscard]] Request& slot(Stream stream, std::uint64_t sequence);
    void check_server() const;
    [[nodiscard]] std::uint64_t bytes_of(std::uint32_t block) const;
    void finished(Stream stream, Request& request);
    void count_request(std::size_t stream, std::size_t slot);  // counts a request that is done, once
    void count_times();
    void unmap_surplus(std::uint64_t offset);

    store::MadeHere process_;
    int liveness_;
    Mapping control_memory_;
    ControlArea& control_;
    WorkerArea& area_;
    Mapping window_;
    Mapping arena_;
    std::uint64_t arena_start_;
    mutable std::mutex mutex_;
    std::array<std::uint64_t, 2> next_sequence_{1, 1};
    std::array<std::array<bool, kRingRequests>, 2> uncounted_{};  // by Stream: posted, and not yet in busy_
    std::uint64_t registered_bytes_ = 0;
    struct Held {
        std::uint64_t offset = 0;
        std::uint32_t count = 0;
    };
    std::vector<Held> held_;                                   // per block
    std::unordered_map<std::uint64_t, std::uint64_t> mapped_;  // bytes from an offset of the window, held or kept
    std::uint64_t mapped_bytes_ = 0;
    std::uint64_t most_mapped_bytes_;
    EndpointStats stats_;
    CoveredTime busy_;
    CoveredTime waited_;
    double squares_ = pipeline::kNoSquares;
    pipeline::TraceRequest trace_request_;
};

}  // namespace luwu::fabric
