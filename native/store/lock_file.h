// The lock on a file that tells which process has a store or a run folder open. A copy that was made with hard links
// shares the file and with it the lock: the process that opens one of the two then replaces the shared file by a new
// one.
#pragma once

#include <string>

#include "store/files.h"

namespace luwu::store {

struct LockedFile {
    File file;          // holds the lock until it is closed; may be no file, see take_lock()
    bool held = false;  // false: another process has the lock
    std::string owner;  // the id that the process which has the lock noted, if not held
};

// Takes the lock of the file, and makes the file where it is missing. `shared`: takes a lock that others may share, and
// does not make a missing file, because then nobody has ever written there. Throws Error.
[[nodiscard]] LockedFile take_lock(const std::string& path, bool shared);
// Takes an exclusive lock on the file in a store's folder. Throws Error(locked).
[[nodiscard]] File lock_store(const std::string& path);

}  // namespace luwu::store
