// Stands between a process and its disk, in front of the C library: loaded with LD_PRELOAD, it notes every call that
// changes what lies under one folder, with the bytes, and lets a chosen call fail. Nothing in the process can go around
// it but io_uring, which is refused, so that the store takes its pool of threads.
//
// A program of tests starts and reads it through ctypes: see harness/disk/recorder.py, which knows the log's format.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "recorder.h"

using namespace luwu::disk;

namespace {

template <typename Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int opened(int folder, const char* path, int flags, const char* name, int (*call)(int, const char*, int, unsigned),
           unsigned mode) {
    Entry entry{.kind = Kind::open, .name = name};
    if (recording) entry.path = absolute(folder, path);
    if (!recording || !inside(entry.path)) return call(folder, path, flags, mode);
    State& now = state();
    entry.handle = next_handle();
    entry.offset = static_cast<std::uint64_t>(flags);
    return pass(entry, [&] {
        const int descriptor = call(folder, path, flags, mode);
        const std::lock_guard lock(now.mutex);
        if (descriptor >= 0) now.handles[descriptor] = {entry.handle, entry.path, identity_of(descriptor)};
        return descriptor;
    });
}

int real_open(int folder, const char* path, int flags, unsigned mode) {
    return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

unsigned mode_of(int flags, va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
}

std::vector<char> gathered(const iovec* parts, int count) {
    std::vector<char> data;
    for (int part = 0; part < count; ++part) append(data, parts[part].iov_base, parts[part].iov_len);
    return data;
}

// The first half of the parts' bytes, at least one.
std::vector<iovec> half_of(const iovec* parts, int count) {
    std::size_t left = 0;
    for (int part = 0; part < count; ++part) left += parts[part].iov_len;
    left = std::max<std::size_t>(left / 2, 1);
    std::vector<iovec> half;
    for (int part = 0; part < count && left > 0; ++part) {
        half.push_back({parts[part].iov_base, std::min(left, parts[part].iov_len)});
        left -= half.back().iov_len;
    }
    return half;
}

std::uint64_t position(int descriptor) {
    return static_cast<std::uint64_t>(syscall(SYS_lseek, descriptor, 0, SEEK_CUR));
}

// offset -1: at the file's position, or at its end when it was opened to be appended to.
ssize_t write_parts(const char* name, int descriptor, const iovec* parts, int count, off_t offset) {
    static auto* const at_offset = real<ssize_t(int, const iovec*, int, off_t)>("pwritev");
    static auto* const at_position = real<ssize_t(int, const iovec*, int)>("writev");
    const auto call = [&](const iovec* some, int number) {
        return offset < 0 ? at_position(descriptor, some, number) : at_offset(descriptor, some, number, offset);
    };
    Entry entry{.kind = Kind::write, .name = name};
    if (!find(descriptor, entry)) return call(parts, count);
    if (offset >= 0) {
        entry.offset = static_cast<std::uint64_t>(offset);
    } else if ((fcntl(descriptor, F_GETFL) & O_APPEND) != 0) {
        entry.offset = static_cast<std::uint64_t>(syscall(SYS_lseek, descriptor, 0, SEEK_END));
    } else {
        entry.offset = position(descriptor);
    }
    entry.data = gathered(parts, count);
    return pass(
        entry, [&] { return call(parts, count); },
        [&] {
            const std::vector<iovec> half = half_of(parts, count);
            return call(half.data(), static_cast<int>(half.size()));
        });
}

ssize_t read_parts(const char* name, int descriptor, const iovec* parts, int count, off_t offset) {
    static auto* const at_offset = real<ssize_t(int, const iovec*, int, off_t)>("preadv");
    static auto* const at_position = real<ssize_t(int, const iovec*, int)>("readv");
    const auto call = [&](const iovec* some, int number) {
        return offset < 0 ? at_position(descriptor, some, number) : at_offset(descriptor, some, number, offset);
    };
    Entry entry{.kind = Kind::look, .name = name};
    if (!find(descriptor, entry)) return call(parts, count);
    entry.offset = offset < 0 ? position(descriptor) : static_cast<std::uint64_t>(offset);
    return pass(
        entry, [&] { return call(parts, count); },
        [&] {
            const std::vector<iovec> half = half_of(parts, count);
            return call(half.data(), static_cast<int>(half.size()));
        });
}

template <typename Call>
int synced(const char* name, int descriptor, Call call) {
    Entry entry{.kind = Kind::sync, .name = name};
    if (!find(descriptor, entry)) return call();
    entry.site = site();
    return pass(entry, call);
}

template <typename Call>
int sized(const char* name, Kind kind, int descriptor, std::int64_t offset, std::int64_t length, Call call) {
    Entry entry{.kind = kind,
                .offset = static_cast<std::uint64_t>(offset),
                .length = static_cast<std::uint64_t>(length),
                .name = name};
    return find(descriptor, entry) ? pass(entry, call) : call();
}

template <typename Call>
int named(const char* name, Kind kind, std::string path, std::string other, Call call) {
    if (!recording || (!inside(path) && !inside(other))) return call();
    return pass(Entry{.kind = kind, .name = name, .path = std::move(path), .other = std::move(other)}, call);
}

// Both ends of a copy inside the kernel: the bytes are read again from where they were written.
template <typename Call>
ssize_t copied(const char* name, int to, std::uint64_t offset, Call call) {
    Entry entry{.kind = Kind::write, .offset = offset, .name = name};
    if (!find(to, entry)) return call();
    const ssize_t result = pass(
        Entry{.kind = Kind::look, .handle = entry.handle, .offset = offset, .name = name, .path = entry.path}, call);
    if (result <= 0) return result;
    const std::string again = "/proc/self/fd/" + std::to_string(to);
    const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, again.c_str(), O_RDONLY | O_CLOEXEC, 0));
    entry.data.resize(static_cast<std::size_t>(result));
    if (syscall(SYS_pread64, file, entry.data.data(), entry.data.size(), offset) != result) std::abort();
    syscall(SYS_close, file);
    entry.begin = tick();
    entry.length = entry.data.size();
    note(entry, result);
    return result;
}

}  // namespace

// ---- the C library's functions ------------------------------------------------------------------------------------

LUWU_PUBLIC int openat(int folder, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const unsigned mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(folder, path, flags, "open", real_open, mode);
}
LUWU_PUBLIC int openat64(int folder, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const unsigned mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(folder, path, flags, "open", real_open, mode);
}
LUWU_PUBLIC int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const unsigned mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(AT_FDCWD, path, flags, "open", real_open, mode);
}
LUWU_PUBLIC int open64(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const unsigned mode = mode_of(flags, arguments);
    va_end(arguments);
    return opened(AT_FDCWD, path, flags, "open", real_open, mode);
}
LUWU_PUBLIC int creat(const char* path, mode_t mode) {
    return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, "open", real_open, mode);
}
// A close that fails lets go of the descriptor nevertheless, as Linux has it.
LUWU_PUBLIC int close(int descriptor) {
    Entry entry{.kind = Kind::close, .name = "close"};
    const auto call = [&] { return static_cast<int>(syscall(SYS_close, descriptor)); };
    if (!find(descriptor, entry)) return call();
    State& now = state();
    {
        const std::lock_guard lock(now.mutex);
        now.handles.erase(descriptor);
    }
    bool called = false;
    const int result = pass(entry, [&] {
        called = true;
        return call();
    });
    if (!called) {
        const int injected = errno;
        call();
        errno = injected;
    }
    return result;
}

// Looking at a file: its length, its names, or whether it is there.
LUWU_PUBLIC int fstat(int descriptor, struct stat* found) noexcept {
    Entry entry{.kind = Kind::look, .name = "fstat"};
    const auto call = [&] { return static_cast<int>(syscall(SYS_fstat, descriptor, found)); };
    return find(descriptor, entry) ? pass(entry, call) : call();
}
LUWU_PUBLIC int fstat64(int descriptor, struct stat64* found) noexcept {
    return fstat(descriptor, reinterpret_cast<struct stat*>(found));
}
LUWU_PUBLIC int fstatat(int folder, const char* path, struct stat* found, int flags) noexcept {
    return named("stat", Kind::look, recording ? absolute(folder, path) : "", "",
                 [&] { return static_cast<int>(syscall(SYS_newfstatat, folder, path, found, flags)); });
}
LUWU_PUBLIC int fstatat64(int folder, const char* path, struct stat64* found, int flags) noexcept {
    return fstatat(folder, path, reinterpret_cast<struct stat*>(found), flags);
}
LUWU_PUBLIC int stat(const char* path, struct stat* found) noexcept { return fstatat(AT_FDCWD, path, found, 0); }
LUWU_PUBLIC int stat64(const char* path, struct stat64* found) noexcept { return fstatat64(AT_FDCWD, path, found, 0); }
LUWU_PUBLIC int lstat(const char* path, struct stat* found) noexcept {
    return fstatat(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
LUWU_PUBLIC int lstat64(const char* path, struct stat64* found) noexcept {
    return fstatat64(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

// Listing a folder; the C library opens it by itself.
LUWU_PUBLIC DIR* opendir(const char* path) {
    static auto* const call = real<DIR*(const char*)>("opendir");
    DIR* listed = nullptr;
    const int result = named("opendir", Kind::look, recording ? absolute(AT_FDCWD, path) : "", "", [&] {
        listed = call(path);
        return listed != nullptr ? 0 : -1;
    });
    return result < 0 ? nullptr : listed;
}

LUWU_PUBLIC ssize_t write(int descriptor, const void* data, size_t bytes) {
    const iovec part{const_cast<void*>(data), bytes};
    return write_parts("write", descriptor, &part, 1, -1);
}
LUWU_PUBLIC ssize_t writev(int descriptor, const iovec* parts, int count) {
    return write_parts("write", descriptor, parts, count, -1);
}
LUWU_PUBLIC ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
    const iovec part{const_cast<void*>(data), bytes};
    return write_parts("write", descriptor, &part, 1, offset);
}
LUWU_PUBLIC ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
    const iovec part{const_cast<void*>(data), bytes};
    return write_parts("write", descriptor, &part, 1, offset);
}
LUWU_PUBLIC ssize_t pwritev(int descriptor, const iovec* parts, int count, off_t offset) {
    return write_parts("write", descriptor, parts, count, offset);
}
LUWU_PUBLIC ssize_t pwritev64(int descriptor, const iovec* parts, int count, off64_t offset) {
    return write_parts("write", descriptor, parts, count, offset);
}
LUWU_PUBLIC ssize_t read(int descriptor, void* data, size_t bytes) {
    const iovec part{data, bytes};
    return read_parts("read", descriptor, &part, 1, -1);
}
LUWU_PUBLIC ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) {
    const iovec part{data, bytes};
    return read_parts("read", descriptor, &part, 1, offset);
}
LUWU_PUBLIC ssize_t pread64(int descriptor, void* data, size_t bytes, off64_t offset) {
    const iovec part{data, bytes};
    return read_parts("read", descriptor, &part, 1, offset);
}
LUWU_PUBLIC ssize_t preadv(int descriptor, const iovec* parts, int count, off_t offset) {
    return read_parts("read", descriptor, parts, count, offset);
}
LUWU_PUBLIC ssize_t preadv64(int descriptor, const iovec* parts, int count, off64_t offset) {
    return read_parts("read", descriptor, parts, count, offset);
}
LUWU_PUBLIC ssize_t sendfile(int to, int from, off_t* offset, size_t bytes) {
    static auto* const call = real<ssize_t(int, int, off_t*, size_t)>("sendfile");
    return copied("sendfile", to, position(to), [&] { return call(to, from, offset, bytes); });
}
LUWU_PUBLIC ssize_t sendfile64(int to, int from, off64_t* offset, size_t bytes) {
    return sendfile(to, from, offset, bytes);
}
LUWU_PUBLIC ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t bytes,
                                    unsigned flags) {
    static auto* const call = real<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>("copy_file_range");
    const std::uint64_t at = to_offset != nullptr ? static_cast<std::uint64_t>(*to_offset) : position(to);
    return copied("copy_file_range", to, at, [&] { return call(from, from_offset, to, to_offset, bytes, flags); });
}

LUWU_PUBLIC int fsync(int descriptor) {
    static auto* const call = real<int(int)>("fsync");
    return synced("fsync", descriptor, [&] { return call(descriptor); });
}
LUWU_PUBLIC int fdatasync(int descriptor) {
    static auto* const call = real<int(int)>("fdatasync");
    return synced("fdatasync", descriptor, [&] { return call(descriptor); });
}

LUWU_PUBLIC int ftruncate(int descriptor, off_t bytes) {
    static auto* const call = real<int(int, off_t)>("ftruncate");
    return sized("ftruncate", Kind::truncate, descriptor, 0, bytes, [&] { return call(descriptor, bytes); });
}
LUWU_PUBLIC int ftruncate64(int descriptor, off64_t bytes) { return ftruncate(descriptor, bytes); }
LUWU_PUBLIC int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
    static auto* const call = real<int(int, int, off_t, off_t)>("fallocate");
    const Kind kind = (mode & FALLOC_FL_PUNCH_HOLE) != 0 ? Kind::punch : Kind::allocate;
    return sized("fallocate", kind, descriptor, offset, bytes, [&] { return call(descriptor, mode, offset, bytes); });
}
LUWU_PUBLIC int fallocate64(int descriptor, int mode, off64_t offset, off64_t bytes) {
    return fallocate(descriptor, mode, offset, bytes);
}
// It returns an error's number; a fault is -1 there and becomes its errno.
LUWU_PUBLIC int posix_fallocate(int descriptor, off_t offset, off_t bytes) {
    static auto* const call = real<int(int, off_t, off_t)>("posix_fallocate");
    const int result =
        sized("fallocate", Kind::allocate, descriptor, offset, bytes, [&] { return call(descriptor, offset, bytes); });
    return result < 0 ? errno : result;
}
LUWU_PUBLIC int posix_fallocate64(int descriptor, off64_t offset, off64_t bytes) {
    return posix_fallocate(descriptor, offset, bytes);
}

LUWU_PUBLIC int renameat2(int from, const char* path, int to, const char* other, unsigned flags) {
    return named("rename", Kind::rename, recording ? absolute(from, path) : "", recording ? absolute(to, other) : "",
                 [&] { return static_cast<int>(syscall(SYS_renameat2, from, path, to, other, flags)); });
}
LUWU_PUBLIC int renameat(int from, const char* path, int to, const char* other) {
    return renameat2(from, path, to, other, 0);
}
LUWU_PUBLIC int rename(const char* path, const char* other) { return renameat2(AT_FDCWD, path, AT_FDCWD, other, 0); }
LUWU_PUBLIC int linkat(int from, const char* path, int to, const char* other, int flags) {
    return named("link", Kind::link, recording ? absolute(from, path) : "", recording ? absolute(to, other) : "",
                 [&] { return static_cast<int>(syscall(SYS_linkat, from, path, to, other, flags)); });
}
LUWU_PUBLIC int link(const char* path, const char* other) { return linkat(AT_FDCWD, path, AT_FDCWD, other, 0); }
LUWU_PUBLIC int unlinkat(int folder, const char* path, int flags) {
    return named("unlink", Kind::unlink, recording ? absolute(folder, path) : "", "",
                 [&] { return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)); });
}
LUWU_PUBLIC int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
LUWU_PUBLIC int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
LUWU_PUBLIC int remove(const char* path) {
    const int result = unlinkat(AT_FDCWD, path, 0);
    return result < 0 && errno == EISDIR ? unlinkat(AT_FDCWD, path, AT_REMOVEDIR) : result;
}
LUWU_PUBLIC int faccessat(int folder, const char* path, int mode, int flags) noexcept {
    return named("access", Kind::look, recording ? absolute(folder, path) : "", "",
                 [&] { return static_cast<int>(syscall(SYS_faccessat2, folder, path, mode, flags)); });
}
LUWU_PUBLIC int access(const char* path, int mode) noexcept { return faccessat(AT_FDCWD, path, mode, 0); }
LUWU_PUBLIC int mkdirat(int folder, const char* path, mode_t mode) {
    return named("mkdir", Kind::make_folder, recording ? absolute(folder, path) : "", "",
                 [&] { return static_cast<int>(syscall(SYS_mkdirat, folder, path, mode)); });
}
LUWU_PUBLIC int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
