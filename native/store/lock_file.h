// The lock on a file that tells who has a store or a run folder open. A copy that was made with hard links shares the
// file and with it the lock: who opens one of the two then puts a new file in the place of the shared one.
#pragma once

#include <string>

#include "store/files.h"

namespace luwu::store {

struct LockedFile {
    File file;          // holds the lock until it is closed; no file where nobody can want it, see below
    bool held = false;  // false: somebody else has it
    std::string owner;  // then: the process that has it, as it wrote itself down
};

// Takes the lock of the file, and makes the file where it is missing. `shared`: together with others who share it, and
// a file that is missing, as nobody has ever written there, is not made. Throws Error.
[[nodiscard]] LockedFile take_lock(const std::string& path, bool shared);
// An exclusive lock on the file in a store's folder. Throws Error(locked).
[[nodiscard]] File lock_store(const std::string& path);

}  // namespace luwu::store
