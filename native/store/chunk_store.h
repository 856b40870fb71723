// The out-of-core store: one file of chunks per folder (stripe) and one file of commit records. Holds no thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/files.h"
#include "store/io_engine.h"
#include "store/layout.h"
#include "store/records.h"

namespace luwu::store {

// create: makes the store, over what a creation that ended early left, but never over one that was committed to.
enum class OpenMode : std::uint8_t { create, open, read_only };

class ChunkStore {
  public:
    // Throws Error: no_space (and removes what it made), permission, locked, corrupt (names file and offset), format.
    ChunkStore(const std::vector<std::string>& folders, const Layout& layout, const Uuid& uuid, OpenMode mode);

    // False from creation until the first commit: then the initial values are not complete and must be written again.
    [[nodiscard]] bool initialised() const { return committed_.sequence > 0; }
    [[nodiscard]] Error no_values() const;  // of a store that is not initialised
    [[nodiscard]] const CommitRecord& committed() const { return committed_; }
    // The commit before, if its record is there: what go_back() returns to. Until the next update all of it is there.
    [[nodiscard]] const std::optional<CommitRecord>& before() const { return before_; }
    [[nodiscard]] const Layout& layout() const { return layout_; }
    [[nodiscard]] bool direct() const { return direct_; }

    // Requests for one chunk's record at an update count. `header` is one page; states are header page and planes.
    [[nodiscard]] IoRequest read_parameters(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                            void* header) const;
    [[nodiscard]] IoRequest read_states(const ChunkPlace& place, std::uint64_t count, void* states) const;
    [[nodiscard]] IoRequest write_record(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                         void* states) const;

    [[nodiscard]] ChunkHeader make_header(const ChunkPlace& place, std::uint64_t count) const;
    // Throws Error(corrupt or format) naming file and offset unless the header belongs to this chunk and count.
    void check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const;
    // The error for a plane whose checksum is wrong; plane 0 is the parameters, 1.. the states.
    [[nodiscard]] Error damaged(const ChunkPlace& place, std::uint64_t count, std::uint32_t plane) const;
    [[nodiscard]] Error failed(const IoRequest& request, const ChunkPlace& place) const;

    void sync();  // makes all completed writes of chunks durable
    // Makes all completed writes durable, then the record. After it returns the step is committed.
    void commit(CommitRecord record);
    // Files without names, one in each stripe's folder: room for what no crash needs to survive. Their bytes are
    // reserved; they are gone when they are closed, however the process ends. Throws Error(no_space).
    [[nodiscard]] std::vector<File> make_scratch(const std::vector<std::uint64_t>& bytes) const;
    // Undoes the last commit, durably. Only before anything was read or written. Throws Error(order) without before().
    void go_back();
    // Gives the file system back what the committed version does not need: the other place of each trainable chunk, and
    // with it the commit before. Returns the bytes given back. Throws Error(io) where the file system cannot make
    // holes; no value is lost either way.
    std::uint64_t compact();
    // Takes back what compact() gave, so that a full disk is met now and not in a step. Throws Error(no_space).
    void fill_holes();

  private:
    void create(const std::vector<std::string>& folders);
    void create_data_file(const std::string& folder, std::uint32_t stripe);
    void open_existing(const std::vector<std::string>& folders, bool read_only);
    void check_file(const File& file, std::uint32_t stripe) const;
    void erase_slot(std::uint64_t sequence);  // of the commit records, durably
    void read_commits();

    Layout layout_;
    Uuid uuid_;
    std::vector<std::string> folders_;
    std::vector<File> locks_;
    std::vector<File> files_;
    File commits_;
    CommitRecord committed_;
    std::optional<CommitRecord> before_;
    bool direct_ = true;
};

}  // namespace luwu::store
