// The files of one stripe of a store: two versions of its trainable chunks, and its frozen chunks, which never change.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "store/files.h"
#include "store/records.h"

namespace luwu::store {

// Page 0 of a stripe's files, as the layout has it; what differs between them is told by frozen and file_bytes.
[[nodiscard]] FileHeader file_header(const Layout& layout, std::uint32_t stripe, const Uuid& uuid, bool frozen);

class StripeFiles {
  public:
    StripeFiles(std::string folder, const Layout& layout, std::uint32_t stripe, const Uuid& uuid);

    // Makes all files, their room reserved, and their headers and lengths durable. Throws Error: no_space.
    void create();
    // Opens what is there. Throws Error: corrupt (names file and offset), format.
    void open(bool read_only);
    static void remove(const std::string& folder);
    // True if a folder holds files of chunks.
    [[nodiscard]] static bool holds_chunks(const std::string& folder);

    // True if a version's file is there: the file of the version that no commit selects may be missing.
    [[nodiscard]] bool has(std::uint32_t version) const { return versions_[version].descriptor() >= 0; }
    // Throws Error(corrupt or format) where it is not.
    void require(std::uint32_t version) const;
    [[nodiscard]] const File& version(std::uint32_t version) const { return versions_[version]; }
    [[nodiscard]] const File& frozen() const { return frozen_; }
    [[nodiscard]] bool direct() const { return direct_; }

    // Makes what was written to a version, or to the frozen chunks, durable.
    void sync(std::uint32_t version) const { versions_[version].sync(); }
    void sync_frozen() const { frozen_.sync(); }

    // True if a snapshot has a version's file, too. It is not written to any more then.
    [[nodiscard]] bool shared(std::uint32_t version) const { return versions_[version].names() > 1; }
    // Makes sure that there is a file with room for the bytes that will be written to a version which a snapshot has,
    // too. Any thread and process may call it. Throws Error(no_space).
    void reserve_spare(std::uint32_t version) const;
    // Before a version is written to: where a snapshot has its file, too, the spare takes its place. The file before
    // stays open until forget_replaced(), the new name is durable after sync_folder(). Whether it did.
    bool unshare(std::uint32_t version);
    // The same for the frozen chunks, before first values are written: the new file has no values.
    bool unshare_frozen();
    void forget_replaced() { replaced_ = File(); }
    // Reserves what training writes to: what a version lacks, and spares. Throws Error(no_space).
    void make_room();
    // Gives a version's and the frozen chunks' files names in another folder, too.
    void link_to(const std::string& folder, std::uint32_t version) const;
    // Puts another folder's file of a version in the place of one of this stripe's.
    void take_over(const std::string& folder, std::uint32_t from, std::uint32_t to);

    // Puts a file without room in the place of a version that nothing committed is in; the bytes given back.
    std::uint64_t drop(std::uint32_t version);

  private:
    [[nodiscard]] File open_checked(const std::string& path, const FileHeader& expected, bool read_only);
    void check(const File& file, const FileHeader& expected) const;
    [[nodiscard]] std::string version_path(std::uint32_t version) const;
    [[nodiscard]] std::string spare_path(std::uint32_t version) const;

    std::string folder_;
    FileHeader version_header_;
    FileHeader frozen_header_;
    std::array<File, kVersions> versions_;
    File frozen_;
    File replaced_;
    bool direct_ = true;
};

}  // namespace luwu::store
