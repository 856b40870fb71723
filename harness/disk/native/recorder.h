// Notes the calls of this process that change what lies under one folder, with the bytes, and lets a chosen call fail.
// calls.cc puts it in front of the C library.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

// Marks the functions of this library that programs and callers of the C library find.
#define LUWU_PUBLIC extern "C" __attribute__((visibility("default")))

namespace luwu::disk {

// Kinds of calls by their effect on the disk, numbered as in harness/disk/recorder.py. `look` changes nothing; it is
// counted as a call that can fail.
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

extern std::atomic<bool> recording;
extern thread_local std::string label;  // of this thread's next sync: where in Python it is called

State& state();
void make_shared_counters();  // before any child is forked
std::uint64_t tick();
std::uint64_t next_handle();

bool inside(const std::string& path);
// Absolute, without a look at symbolic links: the folders of tests have none.
std::string absolute(int folder, const char* path);
// Call site in the native module: offsets in it, innermost first. A caller in Python gives a label.
std::string site();
void append(std::vector<char>& record, const void* data, std::size_t bytes);
void note(const Entry& entry, std::int64_t result);
// Returns the fault that is to happen at this call, and counts the call.
Fault meet(Entry& entry);
std::array<std::uint64_t, 2> identity_of(int descriptor);
// Finds an open file that lies under the root.
bool find(int descriptor, Entry& entry);

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

}  // namespace luwu::disk
