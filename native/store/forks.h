// Descriptors and objects that a process forked from this one must not keep.
//
// fork() copies every descriptor, close-on-exec or not. A lock (flock) belongs to the open file and not to the process,
// and a connection ends when its last copy is closed: a child that outlives a killed parent would keep the store locked
// and the parent's connections open. So a handler of pthread_atfork, which runs in the child of every fork(), whoever
// calls it (Python's multiprocessing, a library in C), puts /dev/null in the place of each of our descriptors. The
// numbers stay taken: what closes its own descriptor in the child's copy of memory closes nothing of another's.
//
// Considered and left: locks of fcntl (F_SETLK), which a child does not inherit. They end when their process closes any
// descriptor of the file, and do nothing for connections. Python's os.register_at_fork alone: it does not see a fork()
// in C. Processes that are made without fork() (posix_spawn, vfork) begin another program at once, and all our
// descriptors are closed on exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>

namespace luwu::store {

// Until forget_descriptor(), a forked child gets /dev/null in the place of this descriptor. If the descriptor was
// closed without that call and another file has its number, the child keeps that file.
void keep_from_children(int descriptor);
void forget_descriptor(int descriptor);
// The same for every connection to this address, for connections whose descriptors a library keeps to itself. It cannot
// be undone.
void keep_connections_from_children(const sockaddr& peer);

// Identifies the process that made an object, so that a forked child is refused.
class MadeHere {
  public:
    MadeHere();
    // Throws Error(forked) in a child. `what` begins the message: "this session".
    void require(const char* what) const;

  private:
    std::uint64_t generation_;
};

}  // namespace luwu::store
