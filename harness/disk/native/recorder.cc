#include "recorder.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>

namespace luwu::disk {

std::atomic<bool> recording{false};
thread_local std::string label;

namespace {

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

std::string link_text(const std::string& path) {
    std::array<char, PATH_MAX> text{};
    const auto size = syscall(SYS_readlinkat, AT_FDCWD, path.c_str(), text.data(), text.size());
    return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : std::string();
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

}  // namespace

void make_shared_counters() { shared(); }
std::uint64_t tick() { return shared().ticks.fetch_add(1); }
std::uint64_t next_handle() { return shared().handles.fetch_add(1); }

State& state() {
    static auto* const made = new State;
    return *made;
}

bool inside(const std::string& path) {
    const std::string& root = state().root;
    return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

std::string absolute(int folder, const char* path) {
    if (path == nullptr) return {};
    if (path[0] == '/') return path;
    const std::string base =
        link_text(folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder));
    return path[0] == '\0' ? base : base + "/" + path;
}

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

std::array<std::uint64_t, 2> identity_of(int descriptor) {
    struct stat info{};
    if (syscall(SYS_fstat, descriptor, &info) != 0) return {};  // not the one that is in front of the C library
    return {info.st_dev, info.st_ino};
}

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

}  // namespace luwu::disk
