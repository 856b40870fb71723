// The commit records of a store: each stripe has a file with all of them, and the newest that any file has holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/commit_file.h"

namespace luwu::store {

// What the files say together.
struct Commits {
    CommitRecord newest;
    std::optional<CommitRecord> before;  // the one before it, if its record is there
    bool never_written = false;          // of a store of format 2: nothing was committed, if there are no chunks either
    std::vector<std::string> findings;   // damage that took nothing away, or at most the last commit, in words
};

class CommitFiles {
  public:
    // `name` is that of the file in each stripe's folder.
    CommitFiles(const std::vector<std::string>& folders, const std::string& name, const Layout& layout,
                const Uuid& uuid);

    // Throws Error: corrupt where no valid record is left, or where what is left says that nothing was committed while
    // others are damaged; format.
    [[nodiscard]] Commits read() const;
    // Makes the files, with one record.
    void create(const CommitRecord& record);
    // Before anything of the store is written: makes the newest record durable in all files, and the one before it,
    // with one opening more. Whatever was damaged or missing is whole again. Throws Error.
    void open_for_writing(Commits& commits);

    // Writes the record of a step, durably, while the one before it stays in the other slot.
    void commit(const CommitRecord& record, const CommitRecord& before);
    // Makes a record, whose sequence is one more than the newest one's, the only one that there is. A crash leaves this
    // one or those before.
    void commit_alone(const CommitRecord& record);

    [[nodiscard]] const std::string& path() const { return files_.front().path(); }

  private:
    std::vector<CommitFile> files_;
};

// Whether a file of records, of any store, is whole and says that nothing was ever committed.
[[nodiscard]] bool says_no_values(const std::string& path);

}  // namespace luwu::store
