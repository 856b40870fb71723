// Stands between a process and its disk, in front of the C library: loaded with LD_PRELOAD, it notes every call that
// changes what lies under one folder, with the bytes, and lets a chosen call fail. Nothing in the process can go around
// it but io_uring, which is refused, so that the store takes its pool of threads.
//
// A program of tests starts and reads it through ctypes: see tests/disk/recorder.py, which knows the log's format.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

// What a call does to the disk, numbered as tests/disk/recorder.py has it. `look` changes nothing; it is counted as a
// call that can fail.
enum class Kind : std::uint32_t {
    open,
    close,
    write,
    sync,
    truncate,
    allocate,
    punch,
    rename,
    link,
    unlink,
    make_folder,
    mark,
    look
};

enum class Fault : int { none, kill, io_error, no_space, cut };  // cut: half of the bytes are transferred

struct Entry {
    Kind kind = Kind::look;
    std::uint64_t begin = 0;   // ticks of one clock that counts: two calls overlap if their ticks do
    std::uint64_t handle = 0;  // of the open file
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::string name{};  // of the function, for people
    std::string path{};  // absolute
    std::string other{};
    std::string site{};  // of a sync: where in the program it is called
    std::string key{};   // tells the call from all others, the same in every run
    std::vector<char> data{};
};

struct Handle {
    std::uint64_t number = 0;
    std::string path{};
    std::array<std::uint64_t, 2> identity{};  // the C library closes some descriptors itself, as closedir() does
};

// All of it is made when it is first used and never destroyed: calls come before and after main().
struct State {
    std::mutex mutex;
    std::shared_mutex calls;  // held during each call
    std::string root;
    int log = -1;
    bool calls_too = false;  // note calls that change nothing as well
    std::map<int, Handle> handles;
    std::map<std::string, std::uint64_t> seen;  // how often each call came
    std::string fault_key;
    Fault fault = Fault::none;
    bool fault_met = false;
};

std::atomic<bool> recording{false};
thread_local std::string label;

// Forked children go on with the same numbers.
struct Shared {
    std::atomic<std::uint64_t> ticks{1};
    std::atomic<std::uint64_t> handles{1};
};

Shared& shared() {
    static auto* const made =
        new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
    return *made;
}

std::uint64_t tick() { return shared().ticks.fetch_add(1); }

State& state() {
    static auto* const made = new State;
    return *made;
}

template <typename Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool inside(const std::string& path) {
    const std::string& root = state().root;
    return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

std::string link_text(const std::string& path) {
    std::array<char, PATH_MAX> text{};
    const auto size = syscall(SYS_readlinkat, AT_FDCWD, path.c_str(), text.data(), text.size());
    return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : std::string();
}

// Absolute, without a look at symbolic links: the folders of tests have none.
std::string absolute(int folder, const char* path) {
    if (path == nullptr) return {};
    if (path[0] == '/') return path;
    const std::string base =
        link_text(folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder));
    return path[0] == '\0' ? base : base + "/" + path;
}

// Numbers that differ from run to run, such as process ids, become #, so that a call has the same key in every run.
std::string without_numbers(const std::string& path) {
    std::string result;
    for (std::size_t at = 0; at < path.size();) {
        std::size_t end = at;
        while (end < path.size() && std::strchr("0123456789abcdef", path[end]) != nullptr) ++end;
        std::size_t digits = at;
        while (digits < path.size() && std::strchr("0123456789", path[digits]) != nullptr) ++digits;
        if (end - at >= 16 || digits - at >= 3) {
            result += '#';
            at = end - at >= 16 ? end : digits;
        } else {
            result += path[at++];
        }
    }
    return result;
}

// Where in the native module this is called from: offsets in it, innermost first. A caller in Python gives a label.
std::string site() {
    if (!label.empty()) return std::exchange(label, {});
    std::array<void*, 32> frames{};
    const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
    std::string result;
    for (int frame = 0; frame < count; ++frame) {
        Dl_info info{};
        if (dladdr(frames[static_cast<std::size_t>(frame)], &info) == 0 || info.dli_fname == nullptr) continue;
        if (std::strstr(info.dli_fname, "_native") == nullptr) continue;
        const auto offset = reinterpret_cast<std::uintptr_t>(frames[static_cast<std::size_t>(frame)]) -
                            reinterpret_cast<std::uintptr_t>(info.dli_fbase);
        result += (result.empty() ? "" : ",") + std::to_string(offset);
    }
    return result;
}

void append(std::vector<char>& record, const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    record.insert(record.end(), from, from + bytes);
}

// Writes one entry as seven numbers, five texts and the bytes, each with its length before it.
void note(const Entry& entry, std::int64_t result) {
    State& now = state();
    if (entry.kind == Kind::look && !now.calls_too) return;
    std::vector<char> record;
    const std::array<std::uint64_t, 7> numbers{static_cast<std::uint64_t>(entry.kind),
                                               entry.begin,
                                               tick(),
                                               static_cast<std::uint64_t>(result),
                                               entry.handle,
                                               entry.offset,
                                               entry.length};
    append(record, numbers.data(), sizeof numbers);
    for (const std::string* text : {&entry.name, &entry.path, &entry.other, &entry.site, &entry.key}) {
        const auto bytes = static_cast<std::uint64_t>(text->size());
        append(record, &bytes, sizeof bytes);
        append(record, text->data(), text->size());
    }
    const auto bytes = static_cast<std::uint64_t>(entry.data.size());
    append(record, &bytes, sizeof bytes);
    append(record, entry.data.data(), entry.data.size());
    const std::lock_guard lock(now.mutex);
    if (syscall(SYS_write, now.log, record.data(), record.size()) != static_cast<long>(record.size())) std::abort();
}

// The fault that is to happen at this call, which counts the call.
Fault meet(Entry& entry) {
    State& now = state();
    const std::lock_guard lock(now.mutex);
    std::string key =
        entry.name + " " + without_numbers(entry.path.substr(std::min(now.root.size(), entry.path.size())));
    if (entry.kind == Kind::write || entry.kind == Kind::look) key += " @" + std::to_string(entry.offset);
    key += " #" + std::to_string(++now.seen[key]);
    entry.key = key;
    if (now.fault == Fault::none || key != now.fault_key) return Fault::none;
    now.fault_met = true;
    return std::exchange(now.fault, Fault::none);
}

// Runs a call, or its fault in its place, and notes it. `cut` does the call with half of the bytes.
template <typename Call, typename Cut>
auto pass(Entry entry, Call call, Cut cut) -> decltype(call()) {
    using Result = decltype(call());
    entry.begin = tick();
    const Fault fault = meet(entry);
    if (fault == Fault::kill) {
        state().calls.lock();  // all other calls have ended and are noted, or have not begun
        syscall(SYS_kill, getpid(), SIGKILL);
    }
    const std::shared_lock under_way(state().calls);
    if (fault == Fault::io_error || fault == Fault::no_space) {
        errno = fault == Fault::io_error ? EIO : ENOSPC;
        return static_cast<Result>(-1);
    }
    const Result result = fault == Fault::cut ? cut() : call();
    if (result < 0) return result;
    const int kept = errno;
    if (entry.kind == Kind::write) {
        entry.length = static_cast<std::uint64_t>(result);
        entry.data.resize(std::min(entry.data.size(), static_cast<std::size_t>(result)));
    }
    note(entry, static_cast<std::int64_t>(result));
    errno = kept;
    return result;
}

template <typename Call>
auto pass(Entry entry, Call call) -> decltype(call()) {
    return pass(std::move(entry), call, call);
}

std::array<std::uint64_t, 2> identity_of(int descriptor) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) return {};
    return {info.st_dev, info.st_ino};
}

// Finds an open file that lies under the root.
bool find(int descriptor, Entry& entry) {
    if (!recording) return false;
    State& now = state();
    const std::lock_guard lock(now.mutex);
    const auto found = now.handles.find(descriptor);
    if (found == now.handles.end()) return false;
    if (found->second.identity != identity_of(descriptor)) {  // the number is another file's now
        now.handles.erase(found);
        return false;
    }
    entry.handle = found->second.number;
    entry.path = found->second.path;
    return true;
}

int opened(int folder, const char* path, int flags, const char* name, int (*call)(int, const char*, int, unsigned),
           unsigned mode) {
    Entry entry{.kind = Kind::open, .name = name};
    if (recording) entry.path = absolute(folder, path);
    if (!recording || !inside(entry.path)) return call(folder, path, flags, mode);
    State& now = state();
    entry.handle = shared().handles.fetch_add(1);
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

#define LUWU_PUBLIC extern "C" __attribute__((visibility("default")))

// ---- what a program of tests calls
// ------------------------------------------------------------------------------------

// Begins to note calls under `root` in the open file `log`; with `calls_too` also those that change nothing.
LUWU_PUBLIC void luwu_disk_start(const char* root, int log, int calls_too) {
    State& now = state();
    {
        const std::lock_guard lock(now.mutex);
        now.root = root;
        now.log = log;
        now.calls_too = calls_too != 0;
        now.seen.clear();
        now.handles.clear();
    }
    shared();  // before any child is forked
    recording = true;
}
LUWU_PUBLIC void luwu_disk_stop() { recording = false; }
LUWU_PUBLIC void luwu_disk_mark(const char* text) {
    if (recording) note(Entry{.kind = Kind::mark, .begin = tick(), .name = text}, 0);
}
// Says for this thread's next sync where in Python it is called.
LUWU_PUBLIC void luwu_disk_label(const char* text) { label = text; }
// Lets the call with this key, as a log has it, fail once.
LUWU_PUBLIC void luwu_disk_fail(const char* key, int fault) {
    State& now = state();
    const std::lock_guard lock(now.mutex);
    now.fault_key = key;
    now.fault = static_cast<Fault>(fault);
    now.fault_met = false;
}
LUWU_PUBLIC int luwu_disk_met() { return state().fault_met ? 1 : 0; }

// ---- the C library's functions
// ----------------------------------------------------------------------------------------

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
LUWU_PUBLIC int close(int descriptor) {
    Entry entry{.kind = Kind::close, .name = "close"};
    if (find(descriptor, entry)) {
        State& now = state();
        {
            const std::lock_guard lock(now.mutex);
            now.handles.erase(descriptor);
        }
        entry.begin = tick();
        note(entry, 0);
    }
    return static_cast<int>(syscall(SYS_close, descriptor));
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
