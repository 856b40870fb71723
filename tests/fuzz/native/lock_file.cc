// The note in a lock file that another process holds: whatever is in it, there is somebody's name for a message.
#include "store/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "folder.h"
#include "target.h"

namespace {
constexpr std::size_t kNoted = 63;  // of the file, as far as it is read
}

LUWU_FUZZ_TARGET("lock_file") {
    using luwu::fuzz::require;
    static const luwu::fuzz::Folder folder;
    const std::string path = folder.path() + "/lock";
    luwu::fuzz::Input input(data);
    const auto mode = input.number();
    const bool shared = mode % 2 != 0;
    folder.write("lock", input.rest());
    // A copy of the store that was made with hard links.
    const std::string copy = folder.path() + "/copy";
    if ((mode & 2U) != 0) std::filesystem::create_hard_link(path, copy);
    const int holder = open(path.c_str(), O_RDWR | O_CLOEXEC);
    require(holder >= 0 && flock(holder, LOCK_EX | LOCK_NB) == 0, "the lock is free");
    luwu::store::LockedFile found = luwu::store::take_lock(path, shared);
    if ((mode & 2U) != 0 && found.held) {  // the note tells that the holder opened the copy
        close(holder);
        found.file = {};
        std::filesystem::remove(copy);
        return;
    }
    require(!found.held && found.file.descriptor() < 0, "a lock that is held is not given to another");
    require(!found.owner.empty() && found.owner.size() <= kNoted, "the holder has a name for a message");
    luwu::fuzz::error_of({luwu::ErrorKind::locked}, [&] {
        (void)luwu::store::lock_store(path);
        require(false, "a store is not opened twice");
    });
    close(holder);
    {
        const luwu::store::LockedFile taken = luwu::store::take_lock(path, shared);
        require(taken.held, "whatever is in the file, its lock can be taken when nobody holds it");
    }
    (void)luwu::store::lock_store(path);
    std::filesystem::remove(copy);
}
