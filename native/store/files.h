// Open files with the errors a person can act on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "store/error.h"

namespace luwu::store {

inline constexpr const char* kPartial = ".partial";  // end of the name of a file that is not whole yet

class File {
  public:
    File() = default;
    File(int descriptor, std::string path);  // forked children do not keep it open, nor locked
    ~File();
    File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
    File& operator=(File&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        std::swap(path_, other.path_);
        return *this;
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    [[nodiscard]] int descriptor() const { return descriptor_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::uint64_t bytes() const;
    [[nodiscard]] std::uint64_t allocated_bytes() const;  // of the disk; fewer than bytes() where there are holes
    [[nodiscard]] std::uint64_t names() const;            // hard links
    [[nodiscard]] bool is_regular() const;                // false: a pipe or a device is in its place
    void sync() const;                                    // makes what was written durable

  private:
    int descriptor_ = -1;
    std::string path_;
};

[[nodiscard]] std::string folder_of(const std::string& path);  // that the file at `path` is in
[[nodiscard]] bool file_exists(const std::string& path);
[[nodiscard]] std::uint64_t names_of(const std::string& path);  // names of the file at `path`; 0: there is no file
// Direct I/O where the file system has it (direct says whether), else buffered. Throws Error.
[[nodiscard]] File open_file(const std::string& path, bool create, bool read_only, bool* direct = nullptr);
// Reserves the blocks now, so that a run cannot meet a full disk. Throws Error(no_space) naming what is missing.
void reserve(const File& file, std::uint64_t bytes);
// Makes the file this long without room for what is new, which reads as zeros. Throws Error.
void extend(const File& file, std::uint64_t bytes);
// Reserves what is a hole in the file, where the file system can. Throws Error(no_space) naming what is missing.
void fill_holes(const File& file);
// Gives a file another name as well; `to` must not exist. Throws Error.
void link_file(const std::string& from, const std::string& to);
// Gives a file or a folder another name, in the place of what had it. Throws Error.
void rename_file(const std::string& from, const std::string& to);
// Makes the names in a folder durable.
void sync_folder(const std::string& folder);
[[nodiscard]] Error system_error(const std::string& action, const std::string& path, int error_number,
                                 std::uint64_t needed_bytes = 0);
// Bytes that the holes of a file would take; 0 where nobody knows.
[[nodiscard]] std::uint64_t hole_bytes(int descriptor);

}  // namespace luwu::store
