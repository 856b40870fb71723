// The commit records of a store: each stripe has a file with all of them, and the newest record in any file counts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/commit_file.h"

namespace luwu::store {

// Contents of all files together.
struct Commits {
    CommitRecord newest;
    std::optional<CommitRecord> before;  // the one before it, if its record is there
    bool never_written = false;          // format 2, and nothing was committed unless there are chunks
    std::vector<std::string> findings;   // damage in words; it cost nothing, or at most the last commit
    std::string other_time;              // the finding that a folder is of a copy from another time; empty: none is
};

class CommitFiles {
  public:
    // `name`: name of the file in each stripe's folder.
    CommitFiles(const std::vector<std::string>& folders, const std::string& name, const Layout& layout,
                const Uuid& uuid);

    // Reads all files. Throws Error: format; corrupt where no valid record is left, or where the valid records say that
    // nothing was committed while other records are damaged.
    [[nodiscard]] Commits read() const;
    // Makes the files, with one record.
    void create(const CommitRecord& record);
    // Call before anything of the store is written: makes the newest record, which has the number of this opening, and
    // the one before it durable in all files. Files that were damaged or missing are whole again. Throws Error, and
    // changes nothing where a folder is of a copy from another time: that copy may need its record.
    void open_for_writing(Commits& commits);

    // Writes the record of a step, durably; the record before it stays in the other slot.
    void commit(const CommitRecord& record, const CommitRecord& before);
    // Makes this record the only one; its sequence is one more than the newest one's. A crash leaves either this record
    // or the earlier ones.
    void commit_alone(const CommitRecord& record);

    [[nodiscard]] const std::string& path() const { return files_.front().path(); }

  private:
    void look_for_other_times(const std::vector<CommitFileContents>& found, Commits& commits) const;

    std::vector<CommitFile> files_;
};

// True if a file of records, of any store, is whole and says that nothing was ever committed.
[[nodiscard]] bool says_no_values(const std::string& path);

}  // namespace luwu::store
