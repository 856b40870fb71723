// The files of one stripe of a store: two versions of its trainable chunks, and its frozen chunks, which never change.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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
    // Opens what is there. A version's file that is damaged or missing is no error until it is required. Throws Error:
    // corrupt (names file and offset), format.
    void open(bool read_only);
    static void remove(const std::string& folder);
    // True if a folder holds files of chunks.
    [[nodiscard]] static bool holds_chunks(const std::string& folder);

    // Throws Error(corrupt or format) where a version's file is damaged or missing.
    void require(std::uint32_t version) const;
    // True if a version's file is damaged or missing; lost(): its chunks are lost, too.
    [[nodiscard]] bool damaged(std::uint32_t version) const { return damages_[version].has_value(); }
    [[nodiscard]] bool lost(std::uint32_t version) const;
    // The damage to a version that nothing committed is in, in words.
    [[nodiscard]] std::string finding(std::uint32_t version) const;
    // Makes a damaged version's file whole, which nothing committed is in: its first page, durably, or all of it where
    // its chunks are lost. True if it is a new file, whose name is durable after sync_folder().
    bool mend(std::uint32_t version);
    [[nodiscard]] const File& version(std::uint32_t version) const { return versions_[version]; }
    [[nodiscard]] const File& frozen() const { return frozen_; }
    [[nodiscard]] bool direct() const { return direct_; }

    // Makes what was written to a version, or to the frozen chunks, durable.
    void sync(std::uint32_t version) const { versions_[version].sync(); }
    void sync_frozen() const { frozen_.sync(); }

    // True if a snapshot has a version's file, too. It is not written to any more then.
    [[nodiscard]] bool shared(std::uint32_t version) const { return versions_[version].names() > 1; }
    [[nodiscard]] bool frozen_is_shared() const { return frozen_.names() > 1; }
    // Makes sure that there is a file with room for the bytes that will be written to a version which a snapshot has,
    // too. Any thread and process may call it. Throws Error(no_space).
    void reserve_spare(std::uint32_t version) const;
    // Call before a version is written to. If a snapshot has its file, too, the spare takes its place, and this returns
    // true. The file before stays open until forget_replaced(); the new name is durable after sync_folder().
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
    // Damage to a file. Throws Error where it is no damage: the file is another store's, or of another format.
    [[nodiscard]] std::optional<Error> look(const File& file, const FileHeader& expected) const;
    [[nodiscard]] Error missing(std::uint32_t version) const;
    [[nodiscard]] std::string version_path(std::uint32_t version) const;
    [[nodiscard]] std::string spare_path(std::uint32_t version) const;

    std::string folder_;
    FileHeader version_header_;
    FileHeader frozen_header_;
    std::array<File, kVersions> versions_;
    std::array<std::optional<Error>, kVersions> damages_;
    File frozen_;
    File replaced_;
    bool direct_ = true;
};

}  // namespace luwu::store
