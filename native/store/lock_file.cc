#include "store/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <sstream>
#include <thread>

namespace luwu::store {

namespace {

constexpr std::chrono::milliseconds kOpenPatience{10'000};  // for another process that opens the same folder

// Locks the folder, so that one process at a time looks at the file and replaces it. Copies never share the folder,
// which has no second name.
File take_turn(const std::string& folder) {
    constexpr std::chrono::milliseconds pause{5};  // flock has no timeout
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw system_error("open", folder, errno);
    File turn(descriptor, folder);
    const auto deadline = std::chrono::steady_clock::now() + kOpenPatience;
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return {};  // a file system that has no locks on folders
        if (std::chrono::steady_clock::now() >= deadline) {
            throw Error(ErrorKind::locked, "another process has held a lock on the folder " + folder +
                                               " for ten seconds; find it with `lslocks`, end it and try again");
        }
        std::this_thread::sleep_for(pause);
    }
    return turn;
}

ino_t inode_of(const std::string& folder) {
    struct stat info{};
    if (stat(folder.c_str(), &info) != 0) throw system_error("look at", folder, errno);
    return info.st_ino;
}

// Writes the process id for messages, and the folder for other processes that find the file shared.
void note_owner(const File& file, const std::string& folder) {
    const std::string own = std::to_string(getpid()) + " " + std::to_string(inode_of(folder));
    const bool noted = ftruncate(file.descriptor(), 0) == 0 &&
                       pwrite(file.descriptor(), own.data(), own.size(), 0) > 0;  // on a full disk: without it
    static_cast<void>(noted);
}

struct Owner {
    std::string process;
    std::optional<ino_t> folder;  // where the owner opened the file; older versions do not note it
};

Owner owner_of(const File& file) {
    std::array<char, 64> text{};
    if (pread(file.descriptor(), text.data(), text.size() - 1, 0) < 0) text[0] = '\0';
    std::istringstream words(text.data());
    Owner owner;
    ino_t folder = 0;
    words >> owner.process;
    if (words >> folder) owner.folder = folder;
    if (owner.process.empty()) owner.process = "unknown";
    return owner;
}

File open_lock(const std::string& path, bool shared) {
    int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | (shared ? 0 : O_CREAT), 0644);
    if (descriptor < 0 && shared && errno == ENOENT) return {};
    if (descriptor < 0 && shared) descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);  // enough to hold a lock
    if (descriptor < 0) throw system_error("open", path, errno);
    return {descriptor, path};
}

// Replaces the file by one that only this path has, and locks it. Returns no file where this user cannot make one.
File replace(const std::string& path, int how) {
    const std::string partial = path + kPartial;
    unlink(partial.c_str());
    const int descriptor = open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0) return {};
    File file(descriptor, path);
    if (flock(descriptor, how | LOCK_NB) != 0 || rename(partial.c_str(), path.c_str()) != 0) {
        unlink(partial.c_str());
        return {};
    }
    return file;
}

}  // namespace

LockedFile take_lock(const std::string& path, bool shared) {
    const int how = shared ? LOCK_SH : LOCK_EX;
    const std::string folder = folder_of(path);
    const File turn = take_turn(folder);
    LockedFile result;
    result.file = open_lock(path, shared);
    result.held = true;
    if (result.file.descriptor() < 0) return result;
    const bool locked = flock(result.file.descriptor(), how | LOCK_NB) == 0;
    const bool copied = result.file.names() > 1 && turn.descriptor() >= 0;
    const Owner owner = owner_of(result.file);
    if (!locked && (!copied || owner.folder.value_or(inode_of(folder)) == inode_of(folder))) {
        return {.file = {}, .held = false, .owner = owner.process};
    }
    if (copied) {  // a holder, if any, opened the file in the other folder
        File own = replace(path, how);
        if (own.descriptor() >= 0) {
            result.file = std::move(own);
        } else if (!shared) {
            throw Error(ErrorKind::permission, "cannot replace " + path +
                                                   ", which a copy with hard links has, too; give this user write "
                                                   "permission there or use another folder");
        } else {
            return result;
        }
    }
    note_owner(result.file, folder);
    return result;
}

File lock_store(const std::string& path) {
    LockedFile locked = take_lock(path, false);
    if (!locked.held) {
        throw Error(ErrorKind::locked,
                    "the store at " + folder_of(path) + " is open in process " + locked.owner +
                        "; one server owns a store at a time: stop that process or use another folder");
    }
    return std::move(locked.file);
}

}  // namespace luwu::store
