// A pipeline step that moves data to or from the disk: one thread, one queue, one I/O engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/io_engine.h"
#include "trace/recorder.h"

namespace luwu::pipeline {

// Transfer of one chunk.
struct IoTask {
    store::IoRequest request;
    std::uint32_t chunk = 0;
    std::uint64_t count = 0;  // the version that is read or written
    std::uint64_t bytes = 0;
    std::uint64_t step = 0;      // that it is a part of
    std::uint64_t begun_ns = 0;  // trace::Recorder::begin, when the engine got it
    bool kept = false;           // it is the chunk's kept gradient, no record
    bool follows = false;        // it is the record of a commit point that follows
    std::byte* copy = nullptr;   // where that record was copied to: parameters, then states; null: it was not
    store::AlignedBuffer page;   // for the chunk header, where it is read apart from the states
};

class IoStage {
  public:
    // `done` is called in the stage's thread for every finished task; request.error tells how it ended.
    IoStage(std::string name, std::unique_ptr<store::IoEngine> engine, const trace::Recorder& recorder,
            std::function<void(IoTask&)> done);
    ~IoStage();  // finishes what was submitted
    IoStage(const IoStage&) = delete;
    IoStage& operator=(const IoStage&) = delete;

    void submit(std::unique_ptr<IoTask> task);
    void post(std::function<void()> job);  // runs in the stage's thread
    [[nodiscard]] const char* engine_name() const { return engine_->name(); }

    // Time in which transfers were under way, or a job ran; any thread may ask.
    [[nodiscard]] std::uint64_t busy_nanoseconds() const { return busy_nanoseconds_.load(std::memory_order_relaxed); }

  private:
    void run();
    bool take_work();  // false: stopping and nothing left
    void wait(std::vector<store::IoRequest*>& completed);

    std::string name_;
    std::unique_ptr<store::IoEngine> engine_;
    const trace::Recorder& recorder_;
    std::function<void(IoTask&)> done_;
    std::mutex mutex_;
    std::deque<std::unique_ptr<IoTask>> queue_;
    std::deque<std::function<void()>> jobs_;
    bool stopping_ = false;
    std::vector<std::unique_ptr<IoTask>> in_flight_;
    std::atomic<std::uint64_t> busy_nanoseconds_{0};
    std::thread thread_;
};

}  // namespace luwu::pipeline
