// The out-of-core store: files of chunks in each folder (stripe), and one file of commit records. Holds no thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/chunk_records.h"
#include "store/chunk_versions.h"
#include "store/commit_files.h"
#include "store/files.h"
#include "store/layout.h"
#include "store/records.h"
#include "store/stripe_files.h"

namespace luwu::store {

// create: makes the store. It replaces what an unfinished creation left, but never a store that was committed to.
// go_on: opens the store, and where it has no values yet, keeps the first values that were written in earlier openings.
// restore: opens the store for restore() alone, which does not need the committed chunks' files.
enum class OpenMode : std::uint8_t { create, open, go_on, restore, read_only };

// In the place of the file of commits, in a folder that holds a snapshot.
inline constexpr const char* kSnapshotRecordName = "/snapshot.luwu";

class ChunkStore {
  public:
    // Throws Error: no_space (and removes what it made), permission, locked, corrupt (names file and offset), format.
    ChunkStore(const std::vector<std::string>& folders, const Layout& layout, const Uuid& uuid, OpenMode mode);
    ChunkStore(const ChunkStore&) = delete;
    ChunkStore& operator=(const ChunkStore&) = delete;

    // False from creation until the first commit: then the initial values are not complete and must be written again.
    [[nodiscard]] bool initialised() const { return committed_.has_values; }
    // Damage that was found when the store was opened, in words: to commit records, which cost nothing or at most the
    // last commit, and to files of the version that is not committed. Opening the store for writing has mended it.
    [[nodiscard]] const std::vector<std::string>& findings() const { return findings_; }
    [[nodiscard]] Error no_values() const;  // of a store that is not initialised
    [[nodiscard]] const CommitRecord& committed() const { return committed_; }
    // The commit before, if its record is there: what go_back() returns to. Until the next update all of it is there.
    [[nodiscard]] const std::optional<CommitRecord>& before() const { return before_; }
    [[nodiscard]] const Layout& layout() const { return layout_; }
    [[nodiscard]] const Uuid& uuid() const { return uuid_; }
    [[nodiscard]] const std::vector<std::string>& folders() const { return folders_; }
    [[nodiscard]] bool direct() const;

    // The record of each chunk on the disk. Valid as long as the store; any thread may use it.
    [[nodiscard]] ChunkRecords records() const { return {layout_, uuid_, stripes_, versions_}; }

    void sync();  // makes all completed writes of chunks durable
    // Makes all completed writes durable, then the record. After it returns the step is committed. All trainable blocks
    // were updated as often as each other since the commit before, or none: throws Error(order).
    void commit(CommitRecord record);
    // Undoes the last commit, durably. Only before anything was read or written. Throws Error(order) without before().
    void go_back();
    // Gives the file system back what the commit does not need: the other version of the trainable chunks, and with it
    // the commit before. Returns the bytes given back. No value is lost.
    std::uint64_t compact();
    // Reserves all that training writes to: what compact() gave back, and a file in the place of each that a snapshot
    // has, too. So a full disk is met now and not in a step. Throws Error(no_space).
    void make_room();

    // Call before the first write after a commit: puts other files in the place of those that a snapshot has, too. True
    // the first time. After Error(no_space) it may be called again.
    bool prepare_to_write();
    // Call when everything since the last commit will be written again: a new attempt number tells the new chunks from
    // the old ones, if a disk loses a write. Not while a commit is made.
    void begin_again() { versions_.begin_again(); }
    // Call before a chunk is written outside of a step: first values, which any thread may write, or a version that is
    // not committed. Throws Error(order) where the write would overwrite committed values.
    void prepare_to_fill(const ChunkPlace& place, std::uint64_t count);
    // True if a copy of the store made with hard links has the files of its first values, too. prepare_to_fill() then
    // puts empty files in their place: what was filled in before is in the copy alone. Any thread may call it.
    [[nodiscard]] bool filling_is_shared() const;
    // Reserves a file in the place of the committed version's, or of the one that is being written, for when a snapshot
    // will have that. Any thread may call it. Throws Error(no_space).
    void reserve_spare(std::uint32_t version) const;
    void link_to(std::uint32_t stripe, const std::string& folder) const;  // the committed version's files
    // For a store that is only read: looks for commits of another process since. Returns true if there are any.
    bool look_again();
    // Makes the store stand where a snapshot of it stands, which stays. A crash leaves it there or where it was; the
    // commit before the present one is forgotten in any case. Only before anything was read or written.
    void restore(const ChunkStore& snapshot);

  private:
    void create();
    void remove_created() const;
    void open(OpenMode mode);
    void look_at_other_version(Commits& found) const;
    void note(Commits commits, bool require_chunks = true);
    void stand_at(CommitRecord record);  // durably; no other commit is left

    Layout layout_;
    Uuid uuid_;
    std::vector<std::string> folders_;
    std::vector<File> locks_;
    std::vector<StripeFiles> stripes_;
    CommitFiles commits_;
    std::vector<std::string> findings_;
    mutable std::mutex spare_turn_;  // one thread at a time, so that room for only one file is needed
    bool writing_ = false;           // prepared to write since the last commit
    bool replaced_ = false;          // files were replaced, and their names are not durable yet
    bool filling_ = false;           // prepared to fill first values since the store was opened
    CommitRecord committed_;
    std::optional<CommitRecord> before_;
    ChunkVersions versions_;
};

}  // namespace luwu::store
