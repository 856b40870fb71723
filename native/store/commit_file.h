// A stripe's file of commit records: two slots, written in turn, and a second copy of both far behind them. So one
// record is always whole, and damage to one place of the file loses no record.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/files.h"
#include "store/records.h"

namespace luwu::store {

inline constexpr std::uint32_t kSlots = 2;  // a record is in the slot of its sequence modulo 2

// Contents of one file.
struct CommitFileContents {
    bool exists = false;
    bool format_2 = false;                                  // the file has only one copy of each slot
    bool never_written = false;                             // format 2: all zeros, as until the first commit
    std::array<std::optional<CommitRecord>, kSlots> slots;  // the newest valid copy of each
    std::array<bool, kSlots> damaged{};                     // slots that were written and have no valid copy
    std::vector<std::string> findings;                      // damage, in words
};

class CommitFile {
  public:
    CommitFile(std::string path, const Layout& layout, const Uuid& uuid)
        : path_(std::move(path)), layout_(&layout), uuid_(uuid) {}

    // Reads the file that is at the path now. Throws Error: format, io.
    [[nodiscard]] CommitFileContents read() const;
    // Replaces the file by a new one, durably: both slots have `record`, or with `before` each of the two has its own
    // slot.
    void make(const CommitRecord& record, const std::optional<CommitRecord>& before = std::nullopt);
    // Opens the file, if there is one, so that it can be written to in place.
    void open();
    // True if the file cannot be written to in place: it is missing, of format 2, or a copy of the store has it, too.
    [[nodiscard]] bool has_to_be_made() const;

    // Writes a record to its slot; durable after sync().
    void write(const CommitRecord& record);
    void sync() const { file_.sync(); }
    // Writes a record to a slot, durably. If one of the slot's copies was valid and durable before, then one is at
    // every moment.
    void rewrite(const CommitRecord& record, std::uint32_t slot);

    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    [[nodiscard]] std::uint64_t slot_bytes() const { return commit_slot_bytes(*layout_); }
    [[nodiscard]] std::uint64_t offset_of(std::uint32_t copy, std::uint32_t slot) const;
    [[nodiscard]] std::uint64_t file_bytes() const { return offset_of(1, kSlots); }
    [[nodiscard]] AlignedBuffer encode(const CommitRecord& record) const;

    std::string path_;
    const Layout* layout_;  // the store's, which lives longer than this
    Uuid uuid_;
    File file_;  // open for writing
};

}  // namespace luwu::store
