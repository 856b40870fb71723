#include "store/snapshots.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

namespace luwu::store {

namespace {

constexpr const char* kFolderName = "/snapshots";
constexpr int kAttempts = 1000;  // at catching a commit between two of a training that goes on
// Files of the first stripe, where they are there. They change by being replaced, so a second name is as good as a
// copy.
constexpr std::array<const char*, 3> kCompanions{"/manifest.json", "/origin.json", "/run.json"};
constexpr const char* kModelName = "/model";

std::string step_folder(const std::string& folder, const std::string& name) {
    return folder + kFolderName + "/" + name;
}

void make_folder(const std::string& path) {
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) throw system_error("make", path, errno);
}

void remove_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw system_error("remove", path, error.value());
}

// None where there is no such folder. One that cannot be read is an error, because what is not listed may be removed.
std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) throw system_error("list", folder, error.value());
    return names;
}

bool step_of(const std::string& name, std::uint64_t& step) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    return error == std::errc() && end == name.data() + name.size() && name == std::to_string(step);
}

// True for a snapshot's folder in one of the store's folders. Of older formats, only the first has the record. A file
// or folder without it belongs to the user, also where a number is its name.
bool is_own(const std::vector<std::string>& folders, std::size_t stripe, const std::string& name) {
    const std::string path = step_folder(folders[stripe], name);
    return file_exists(path + kSnapshotRecordName) || (stripe > 0 && StripeFiles::holds_chunks(path));
}

// Locks a folder until the file is closed; returns no file where others hold the lock for longer than `patience`.
File lock_folder(const std::string& path, int how, std::chrono::milliseconds patience) {
    constexpr std::chrono::milliseconds pause{5};  // flock itself waits for ever or not at all
    const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw system_error("open", path, errno);
    File held(descriptor, path);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (flock(descriptor, how | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) throw system_error("lock", path, errno);
        if (std::chrono::steady_clock::now() >= deadline) return {};
        std::this_thread::sleep_for(pause);
    }
    return held;
}

File lock_folder_or_throw(const std::string& path, int how, std::chrono::milliseconds patience) {
    File held = lock_folder(path, how, patience);
    if (held.descriptor() >= 0) return held;
    const bool waited = patience.count() > 0;
    throw Error(ErrorKind::locked, "another process " + std::string(waited ? "has held" : "holds") +
                                       " a lock on the folder " + path +
                                       (waited ? " for " + std::to_string(patience.count()) + " ms" : "") +
                                       "; find it with `lslocks`, end it and try again");
}

// Held by all who take or remove a snapshot, and alone by who removes remains.
File take_turn(const std::vector<std::string>& folders, std::chrono::milliseconds patience) {
    return lock_folder_or_throw(folders[0] + kFolderName, LOCK_SH, patience);
}

// Held by who gives a snapshot's folders their names, or takes them.
File lock_names(const std::vector<std::string>& folders, std::chrono::milliseconds patience) {
    return lock_folder_or_throw(folders[0], LOCK_EX, patience);
}

// A name for a folder before it has its own name, and after it has lost that.
std::string passing_name(std::uint64_t step) {
    static std::atomic<std::uint64_t> number{0};
    return std::to_string(step) + "." + std::to_string(getpid()) + "-" + std::to_string(number++) + ".partial";
}

// True for NUMBER.NUMBER-NUMBER.partial. A folder with another name belongs to the user.
bool is_passing_name(std::string_view name) {
    for (const std::string_view after : {".", "-", ".partial"}) {
        const auto end = name.find_first_not_of("0123456789");
        if (end == 0 || end == std::string_view::npos || !name.substr(end).starts_with(after)) return false;
        name.remove_prefix(end + after.size());
    }
    return name.empty();
}

void link_if_there(const std::string& from, const std::string& to) {
    if (file_exists(from)) link_file(from, to);
}

// Takes a snapshot's folders their names; without its first folder it is none any more.
void take_names(const std::vector<std::string>& folders, std::uint64_t step, const std::string& name) {
    const std::string own = std::to_string(step);
    for (std::size_t stripe = 0; stripe < folders.size(); ++stripe) {
        if (!is_own(folders, stripe, own)) continue;
        rename_file(step_folder(folders[stripe], own), step_folder(folders[stripe], name));
        sync_folder(folders[stripe] + kFolderName);
    }
}

void require_place(const std::vector<std::string>& folders, std::uint64_t step) {
    const std::string own = std::to_string(step);
    for (std::size_t stripe = 0; stripe < folders.size(); ++stripe) {
        const std::string path = step_folder(folders[stripe], own);
        if (!file_exists(path) || is_own(folders, stripe, own)) continue;
        throw Error(ErrorKind::invalid, "expected a snapshot of step " + own + " or nothing in " + path +
                                            ", found something else; move it to another folder and take the snapshot "
                                            "again (nothing was changed)");
    }
}

void remove_folders(const std::vector<std::string>& folders, const std::string& name) {
    for (const std::string& folder : folders) remove_folder(step_folder(folder, name));
}

}  // namespace

std::vector<std::string> snapshot_folders(const std::vector<std::string>& folders, std::uint64_t step) {
    std::vector<std::string> found;
    for (const std::string& folder : folders) found.push_back(step_folder(folder, std::to_string(step)));
    return found;
}

std::vector<std::uint64_t> snapshot_steps(const std::vector<std::string>& folders) {
    std::vector<std::uint64_t> steps;
    std::uint64_t step = 0;
    for (const std::string& name : names_in(folders[0] + kFolderName)) {
        if (step_of(name, step) && is_own(folders, 0, name)) steps.push_back(step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

void require_snapshot(const std::vector<std::string>& folders, std::uint64_t step) {
    std::string found;
    for (const std::uint64_t there : snapshot_steps(folders)) {
        if (there == step) return;
        found += (found.empty() ? "" : ", ") + std::to_string(there);
    }
    throw Error(ErrorKind::invalid, folders[0] + ": expected a snapshot of step " + std::to_string(step) + ", found " +
                                        (found.empty() ? "none" : "those of step " + found) +
                                        "; luwu snapshot list shows them");
}

void remove_snapshot(const std::vector<std::string>& folders, std::uint64_t step) {
    require_snapshot(folders, step);
    const File turn = take_turn(folders, kPatience);
    const std::string name = passing_name(step);
    {
        const File names = lock_names(folders, kPatience);
        take_names(folders, step, name);
    }
    remove_folders(folders, name);
}

void remove_remains(const std::vector<std::string>& folders) {
    if (!file_exists(folders[0] + kFolderName)) return;
    const File turn = lock_folder(folders[0] + kFolderName, LOCK_EX, std::chrono::milliseconds(0));
    if (turn.descriptor() < 0) return;
    const std::vector<std::uint64_t> steps = snapshot_steps(folders);
    const std::set<std::uint64_t> whole(steps.begin(), steps.end());
    std::uint64_t step = 0;
    for (std::size_t stripe = 0; stripe < folders.size(); ++stripe) {
        for (const std::string& name : names_in(folders[stripe] + kFolderName)) {
            const bool half_made = step_of(name, step) && !whole.contains(step) && is_own(folders, stripe, name);
            if (half_made || is_passing_name(name)) remove_folder(step_folder(folders[stripe], name));
        }
    }
}

PendingSnapshot::PendingSnapshot(const ChunkStore& store, std::chrono::milliseconds patience)
    : layout_(store.layout()),
      uuid_(store.uuid()),
      folders_(store.folders()),
      record_(store.committed()),
      name_(passing_name(record_.step)) {
    for (const std::string& folder : folders_) make_folder(folder + kFolderName);
    turn_ = take_turn(folders_, patience);
    try {
        link_files(store);
    } catch (...) {
        remove_folders(folders_, name_);
        throw;
    }
}

void PendingSnapshot::link_files(const ChunkStore& store) {
    for (std::uint32_t stripe = 0; stripe < folders_.size(); ++stripe) {
        const std::string folder = step_folder(folders_[stripe], name_);
        make_folder(folder);
        store.link_to(stripe, folder);
    }
    const std::string folder = step_folder(folders_[0], name_);
    for (const char* name : kCompanions) link_if_there(folders_[0] + name, folder + name);
    if (!file_exists(folders_[0] + kModelName)) return;
    make_folder(folder + kModelName);
    for (const std::string& name : names_in(folders_[0] + kModelName)) {
        link_file(folders_[0] + kModelName + "/" + name, folder + kModelName + "/" + name);
    }
}

PendingSnapshot::~PendingSnapshot() {
    if (finished_) return;
    std::error_code ignored;  // what stays is removed at the next start
    for (const std::string& folder : folders_) std::filesystem::remove_all(step_folder(folder, name_), ignored);
}

void PendingSnapshot::finish(std::chrono::milliseconds patience) {
    const std::string first = step_folder(folders_[0], name_);
    std::vector<std::string> inside;
    for (const std::string& folder : folders_) inside.push_back(step_folder(folder, name_));
    CommitFiles(inside, kSnapshotRecordName, layout_, uuid_).create(record_);  // makes the links durable, too
    if (file_exists(first + kModelName)) sync_folder(first + kModelName);
    for (const std::string& folder : folders_) sync_folder(folder);  // of snapshots, which may be new
    const std::string before = passing_name(record_.step);
    {
        const File names = lock_names(folders_, patience);
        require_place(folders_, record_.step);
        take_names(folders_, record_.step, before);
        for (std::size_t stripe = folders_.size(); stripe-- > 0;) {  // the first last: then it is there
            rename_file(step_folder(folders_[stripe], name_),
                        step_folder(folders_[stripe], std::to_string(record_.step)));
            sync_folder(folders_[stripe] + kFolderName);
        }
    }
    finished_ = true;
    remove_folders(folders_, before);
}

std::uint64_t take_snapshot(ChunkStore& store, bool in_use) {
    if (!store.initialised()) throw store.no_values();
    remove_remains(store.folders());
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        if (in_use) {
            store.look_again();
            store.reserve_spare(store.committed().version);
        }
        PendingSnapshot pending(store);
        // The commit that the links hold was the last when they were begun and when they were made: none was made
        // twice.
        if (in_use && store.look_again()) continue;
        pending.finish();
        return pending.step();
    }
    throw Error(ErrorKind::order, store.folders()[0] +
                                      ": the training commits steps faster than one can be caught; use "
                                      "--snapshot-every, which need not catch them");
}

void restore_snapshot(ChunkStore& store, std::uint64_t step) {
    require_snapshot(store.folders(), step);
    store.restore(
        ChunkStore(snapshot_folders(store.folders(), step), store.layout(), store.uuid(), OpenMode::read_only));
}

}  // namespace luwu::store
