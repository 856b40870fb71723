// Snapshots of a store: the files of one commit, under second names in a folder of each stripe's, and its record.
// Nothing is copied, as training never writes to a file that has a second name (StripeFiles::unshare). A snapshot is
// there when its folder in the first stripe has its name; docs/store-format.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "store/chunk_store.h"

namespace luwu::store {

// The longest wait for another process that gives or takes names of a store's snapshots. That process only renames a
// few folders and makes that durable; but any process may hold a lock on a folder that it can read, for any time.
inline constexpr std::chrono::milliseconds kPatience{10'000};

// Folders of a snapshot's stripes. They can be opened as a store that is only read.
[[nodiscard]] std::vector<std::string> snapshot_folders(const std::vector<std::string>& folders, std::uint64_t step);
// Steps of the snapshots that are there, ascending.
[[nodiscard]] std::vector<std::uint64_t> snapshot_steps(const std::vector<std::string>& folders);
// Throws Error(invalid) where there is none, naming those there are.
void require_snapshot(const std::vector<std::string>& folders, std::uint64_t step);
// Removes a snapshot. Throws Error(invalid) where there is none.
void remove_snapshot(const std::vector<std::string>& folders, std::uint64_t step);
// Removes what a crash left of snapshots that were being taken or removed; not while one is.
void remove_remains(const std::vector<std::string>& folders);

// A snapshot that is being taken, in two parts: the first has to be over before the commit after the next one is
// begun to be written, the second may take its time.
class PendingSnapshot {
  public:
    // Links the files of what the store has committed. Throws Error; locked when another process holds the lock on the
    // folder of snapshots for longer than `patience`.
    explicit PendingSnapshot(const ChunkStore& store, std::chrono::milliseconds patience = kPatience);
    ~PendingSnapshot();  // removes what was not finished
    PendingSnapshot(const PendingSnapshot&) = delete;
    PendingSnapshot& operator=(const PendingSnapshot&) = delete;

    [[nodiscard]] std::uint64_t step() const { return record_.step; }
    // Makes it durable, in the place of another one of the same step. Throws Error; invalid where a file or folder of
    // the user has that place, locked when another process holds the lock on the store's first folder for longer than
    // `patience`.
    void finish(std::chrono::milliseconds patience = kPatience);

  private:
    void link_files(const ChunkStore& store);

    const Layout& layout_;
    Uuid uuid_;
    std::vector<std::string> folders_;  // of the store
    CommitRecord record_;
    std::string name_;  // of its folders until it is finished
    File turn_;         // while it is held nobody takes this for remains
    bool finished_ = false;
};

// Takes a snapshot of the last commit, also of a store that another process trains on: nobody waits for this. `in_use`
// says that another process or thread may be training; then a file for what training writes next is reserved before.
// Returns the step of the snapshot. Throws Error: no_space, empty where there are no values.
std::uint64_t take_snapshot(ChunkStore& store, bool in_use);
// Makes the store stand where its snapshot of a step stands: ChunkStore::restore. Throws Error: invalid where there is
// none, corrupt.
void restore_snapshot(ChunkStore& store, std::uint64_t step);

}  // namespace luwu::store
