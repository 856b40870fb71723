// The file of a store's commit records: two slots, written in turn, so that one of them is always whole.
#pragma once

#include <optional>
#include <string>

#include "store/files.h"
#include "store/records.h"

namespace luwu::store {

// What the file says: the record that holds, with sequence 0 where nothing was committed, and the one before it.
struct Commits {
    CommitRecord newest;
    std::optional<CommitRecord> before;
};

class CommitFile {
  public:
    CommitFile() = default;
    // Makes the file, all zeros. Throws Error.
    static CommitFile create(const std::string& path, const Layout& layout, const Uuid& uuid);
    CommitFile(const std::string& path, const Layout& layout, const Uuid& uuid, bool read_only)
        : CommitFile(open_file(path, false, read_only), layout, uuid) {}

    // Throws Error: corrupt where neither slot is valid though they were written, format.
    [[nodiscard]] Commits read() const;
    void write(const CommitRecord& record) const;  // durably
    void erase(std::uint64_t sequence) const;      // durably
    [[nodiscard]] const std::string& path() const { return file_.path(); }

  private:
    CommitFile(File file, const Layout& layout, const Uuid& uuid)
        : file_(std::move(file)), layout_(&layout), uuid_(uuid) {}
    void write_slot(std::uint64_t sequence, void* slot) const;

    File file_;
    const Layout* layout_ = nullptr;  // of the store, which lives longer
    Uuid uuid_{};
};

// Whether a file holds anything but zeros.
[[nodiscard]] bool holds_commit(const std::string& path);

}  // namespace luwu::store
