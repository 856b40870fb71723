#include "store/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "store/forks.h"
#include "store/size_text.h"

namespace luwu::store {

namespace {

constexpr std::uint64_t kBlockUnit = 512;  // unit of st_blocks, whatever the file system's block size

std::uint64_t free_bytes(const File& file) {
    struct statvfs info{};
    return fstatvfs(file.descriptor(), &info) == 0 ? info.f_bavail * info.f_frsize : 0;
}

// True if a file system that knows its size has less room than this, also for root. fallocate may take all the room
// that there is before it fails, and another program's writes fail meanwhile.
bool lacks(const File& file, std::uint64_t bytes) {
    struct statvfs info{};
    if (fstatvfs(file.descriptor(), &info) != 0 || info.f_blocks == 0) return false;
    return info.f_bfree * info.f_frsize < bytes;
}

Error no_space(const File& file, std::uint64_t bytes) {
    return Error(ErrorKind::no_space,
                 "the store needs " + size_text(bytes) + " for " + file.path() + " but its disk has " +
                     size_text(free_bytes(file)) +
                     " free; free some space or name another folder with --store (nothing was kept)",
                 {file.path(), bytes});
}

// The system may have dropped what it could not write, so the sync must not be tried again.
Error sync_error(const std::string& path, int error_number) {
    const Error error = system_error("sync", path, error_number);
    return {error.kind(), error.what(), {path, 0, false}};
}

}  // namespace

File::File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {
    if (descriptor_ >= 0) keep_from_children(descriptor_);
}

File::~File() {
    if (descriptor_ < 0) return;
    forget_descriptor(descriptor_);
    close(descriptor_);
}

std::uint64_t File::bytes() const {
    struct stat info{};
    if (fstat(descriptor_, &info) != 0) throw system_error("look at", path_, errno);
    return static_cast<std::uint64_t>(info.st_size);
}

std::uint64_t File::names() const {
    struct stat info{};
    if (fstat(descriptor_, &info) != 0) throw system_error("look at", path_, errno);
    return static_cast<std::uint64_t>(info.st_nlink);
}

bool File::is_regular() const {
    struct stat info{};
    if (fstat(descriptor_, &info) != 0) throw system_error("look at", path_, errno);
    return S_ISREG(info.st_mode);
}

void File::sync() const {
    if (fdatasync(descriptor_) != 0) throw sync_error(path_, errno);
}

std::uint64_t File::allocated_bytes() const {
    struct stat info{};
    if (fstat(descriptor_, &info) != 0) throw system_error("look at", path_, errno);
    return static_cast<std::uint64_t>(info.st_blocks) * kBlockUnit;
}

std::uint64_t hole_bytes(int descriptor) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) return 0;
    const auto bytes = static_cast<std::uint64_t>(info.st_size);
    const std::uint64_t allocated = static_cast<std::uint64_t>(info.st_blocks) * kBlockUnit;
    return bytes > allocated ? bytes - allocated : 0;
}

Error system_error(const std::string& action, const std::string& path, int error_number, std::uint64_t needed_bytes) {
    const std::string message = "cannot " + action + " " + path + ": " + std::strerror(error_number);
    switch (error_number) {
        case EACCES:
        case EPERM:
        case EROFS:
            return {ErrorKind::permission,
                    message + "; give this user read and write permission or choose another folder"};
        case ENOSPC:
        case EDQUOT:
            return {ErrorKind::no_space,
                    message + "; free some space and run again: it resumes at the last committed step",
                    {path, needed_bytes}};
        default:
            return {ErrorKind::io, message};
    }
}

std::uint64_t names_of(const std::string& path) {
    struct stat info{};
    return stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_nlink) : 0;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool file_exists(const std::string& path) {
    if (access(path.c_str(), F_OK) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw system_error("look at", path, errno);  // it may be there
}

File open_file(const std::string& path, bool create, bool read_only, bool* direct) {
    // O_NONBLOCK means nothing to a file; a pipe in its place would be waited for without it.
    const int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0);
    int descriptor = open(path.c_str(), flags | O_DIRECT, 0644);
    if (direct != nullptr) *direct = descriptor >= 0;
    if (descriptor < 0 && errno == EINVAL) {  // a file system without direct I/O; O_CREAT may have made the file
        descriptor = open(path.c_str(), flags & ~O_EXCL, 0644);
    }
    if (descriptor < 0) throw system_error(create ? "create" : "open", path, errno);
    File file{descriptor, path};
    if (!file.is_regular()) {
        throw Error(ErrorKind::corrupt,
                    path + ": expected a file of the store, found a pipe or a device; put the file back");
    }
    return file;
}

void reserve(const File& file, std::uint64_t bytes) {
    const std::uint64_t allocated = file.allocated_bytes();
    if (bytes > allocated && lacks(file, bytes - allocated)) throw no_space(file, bytes);
    if (fallocate(file.descriptor(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw no_space(file, bytes);
    if (errno != EOPNOTSUPP) throw system_error("reserve space in", file.path(), errno);
    if (free_bytes(file) < bytes) throw no_space(file, bytes);
    extend(file, bytes);
}

void extend(const File& file, std::uint64_t bytes) {
    if (ftruncate(file.descriptor(), static_cast<off_t>(bytes)) != 0) throw system_error("extend", file.path(), errno);
}

void fill_holes(const File& file) {
    const std::uint64_t bytes = file.bytes();
    const std::uint64_t allocated = file.allocated_bytes();
    if (allocated >= bytes) return;
    if (!lacks(file, bytes - allocated)) {
        if (fallocate(file.descriptor(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
        if (errno != ENOSPC && errno != EDQUOT) return;  // a file system that reserves nothing
    }
    throw Error(ErrorKind::no_space,
                file.path() + " was compacted and needs " + size_text(bytes - allocated) +
                    " more to train on, but its disk has " + size_text(free_bytes(file)) +
                    " free; free some space (nothing was changed)",
                {file.path(), bytes - allocated});
}

void link_file(const std::string& from, const std::string& to) {
    if (link(from.c_str(), to.c_str()) == 0) return;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK || errno == EXDEV) {
        throw Error(ErrorKind::io, "cannot give " + from + " the name " + to + " as well: " + std::strerror(errno) +
                                       "; snapshots need a file system with hard links, in all of a store's folder");
    }
    throw system_error("give another name to", from, errno);
}

void rename_file(const std::string& from, const std::string& to) {
    if (rename(from.c_str(), to.c_str()) != 0) throw system_error("rename", from, errno);
}

void sync_folder(const std::string& folder) {
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw system_error("open", folder, errno);
    const File held(descriptor, folder);
    if (fsync(descriptor) != 0) throw sync_error(folder, errno);
}

}  // namespace luwu::store
