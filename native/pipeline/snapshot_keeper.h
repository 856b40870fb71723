// Takes a snapshot every `every` steps while training goes on, and removes the oldest. What takes time is done in a
// thread of its own: the pipeline waits for a few hard links, once a snapshot.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "store/chunk_store.h"
#include "store/snapshots.h"

namespace luwu::pipeline {

struct SnapshotSettings {
    std::uint64_t every = 0;  // committed steps; 0: never
    std::uint64_t keep = 0;   // number of automatic snapshots that stay, the newest; 0: all
    std::chrono::milliseconds patience =
        store::kPatience;  // longest wait of its thread for a lock; a step waits for none
};

struct SnapshotStats {
    std::uint64_t taken = 0;  // since the start
    std::uint64_t step = 0;   // of the last
    std::string failure;      // why the last one that was due was given up, or older ones stay; empty: neither
};

class SnapshotKeeper {
  public:
    // Takes the one that was due when the store was last closed, if it is missing.
    SnapshotKeeper(store::ChunkStore& store, SnapshotSettings settings);
    ~SnapshotKeeper();  // finishes what was begun
    SnapshotKeeper(const SnapshotKeeper&) = delete;
    SnapshotKeeper& operator=(const SnapshotKeeper&) = delete;

    // PipelineSettings::on_writing and on_commit.
    void writing(std::uint64_t step);
    void committed();
    [[nodiscard]] SnapshotStats stats() const;

  private:
    [[nodiscard]] bool due(std::uint64_t step) const {
        return settings_.every > 0 && step > 0 && step % settings_.every == 0;
    }
    void post(std::function<void()> job);
    void loop();
    void finish(store::PendingSnapshot& pending);
    void remove_oldest();
    [[nodiscard]] std::uint64_t sequence_of(std::uint64_t step) const;
    void unless_gone(std::uint64_t step, const std::function<void()>& call) const;
    void note_failure(const std::string& what, const Error& error);

    store::ChunkStore& store_;
    SnapshotSettings settings_;
    mutable std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<std::function<void()>> jobs_;
    SnapshotStats stats_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace luwu::pipeline
