// Applies what a standby gets to its store, one after the other, in a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/chunk_store.h"

namespace luwu::standby {

// A record as it lies in memory: parameters, then states, which begin with the chunk's header.
struct Arrived {
    std::uint32_t chunk = 0;
    std::uint64_t count = 0;
    store::AlignedBuffer memory;
};

class Applier {
  public:
    // `done` is called in the thread after each record or commit, also one that failed.
    Applier(store::ChunkStore& store, std::function<void()> done);
    ~Applier();  // what is queued is not applied
    Applier(const Applier&) = delete;
    Applier& operator=(const Applier&) = delete;

    // A buffer for the longest record, or nothing until one is free.
    [[nodiscard]] std::optional<store::AlignedBuffer> take_buffer();
    void give_back(store::AlignedBuffer buffer);
    void add(Arrived record);
    void commit(store::CommitRecord record);  // once all that was added before is written
    // The step of a commit that is durable: each is told once. Throws the error that a record or a commit has met.
    [[nodiscard]] std::optional<std::uint64_t> committed();
    // Returns when nothing is queued, and forgets errors: another connection begins.
    void begin_again();

  private:
    struct Work {
        std::optional<Arrived> record;  // nothing: a commit
        store::CommitRecord commit;
    };

    void queue(Work work);
    void run();
    void apply(Work& work);
    void write(Arrived& record);
    [[nodiscard]] store::ChunkHeader checked(const store::ChunkPlace& place, std::uint64_t count,
                                             const std::byte* memory) const;

    store::ChunkStore& store_;
    std::function<void()> done_;
    std::uint64_t attempt_ = 0;  // of the server: the records since the last commit are of it; 0: there are none
    std::mutex mutex_;           // guards what is below
    std::condition_variable changed_;
    std::vector<store::AlignedBuffer> free_;
    std::deque<Work> work_;
    bool busy_ = false;
    bool stops_ = false;
    std::optional<std::uint64_t> committed_;
    std::optional<Error> error_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::standby
