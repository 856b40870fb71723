// A trace of the next attempts at steps: what the pipeline records of them, and what it asks of their workers.
// Every function may be called from any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "trace/attempts.h"
#include "trace/recorder.h"

namespace luwu::pipeline {

// Records that a worker is asked for, of the attempt that it begins.
struct TraceRequest {
    std::uint64_t records = 0;  // the most of the whole trace; 0: nothing
    bool last = false;          // the trace ends with this attempt
};

// Records of the server, and the first and the last of the attempts by their steps.
struct Traced {
    trace::Recorded recorded;
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
};

inline constexpr std::uint64_t kMostTraceRecords = std::uint64_t{1} << 28;

class Tracing {
  public:
    trace::Recorder recorder;

    // Records the next attempts at steps, at most so many spans here, and so many in each worker. Throws Error(order)
    // where that is under way already, Error(invalid) for a number that is 0 or too large.
    void start(std::uint32_t attempts, std::uint64_t most_records, std::uint64_t most_of_worker);
    // Records what the attempts owe that have begun, and no others: whoever records them with other servers says so.
    void take_no_more();
    void give_up();  // what is recorded is forgotten
    // Returns the records, once, as soon as the attempts have ended and nothing is owed; nothing before.
    [[nodiscard]] std::optional<Traced> take();
    [[nodiscard]] TraceRequest request() const;  // of the attempt under way

    // The pipeline says: an attempt begins, because its first worker does;
    void begin_attempt(std::uint64_t step);
    // an attempt has ended, or a record was written. Between commit points some of what a step owes is done much later.
    void stands(std::uint64_t step, std::uint64_t durable_step);

  private:
    void finish();
    void finish_if_settled();

    mutable std::mutex mutex_;
    trace::Attempts attempts_;
    std::uint64_t most_records_ = 0;
    std::uint64_t most_of_worker_ = 0;
    std::uint64_t step_ = 0;          // as the pipeline said last
    std::uint64_t durable_step_ = 0;  // likewise
    std::optional<Traced> finished_;
};

}  // namespace luwu::pipeline
