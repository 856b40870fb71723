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

// A commit that is durable.
struct Applied {
    std::uint64_t step = 0;
    std::vector<std::byte> note;  // that came with it
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
    void commit(store::CommitRecord record, std::vector<std::byte> note);  // once all that was added before is written
    // Each commit is told once. Throws the error that a record or a commit has met.
    [[nodiscard]] std::optional<Applied> committed();
    // Returns when nothing is queued, with a commit that committed() has not told, and forgets errors and records
    // without a commit: a connection has ended, and the next brings what is missing.
    [[nodiscard]] std::optional<Applied> begin_again();

  private:
    struct Work {
        std::optional<Arrived> record;  // nothing: a commit
        store::CommitRecord commit;
        std::vector<std::byte> note;
    };

    void queue(Work work);
    void run();
    void apply(Work& work);
    void write(Arrived& record);
    void forget_records();
    void require_records(const store::CommitRecord& commit) const;
    [[nodiscard]] store::ChunkHeader checked(const store::ChunkPlace& place, std::uint64_t count,
                                             const std::byte* memory) const;

    store::ChunkStore& store_;
    std::function<void()> done_;
    std::uint64_t attempt_ = 0;  // of the server: the records since the last commit are of it; 0: there are none
    std::vector<std::optional<std::uint64_t>> written_;  // per chunk: update count of the last that came
    std::mutex mutex_;                                   // guards what is below
    std::condition_variable changed_;
    std::vector<store::AlignedBuffer> free_;
    std::deque<Work> work_;
    bool busy_ = false;
    bool stops_ = false;
    std::optional<Applied> committed_;
    std::optional<Error> error_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::standby
