#include "store/forks.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/error.h"

namespace luwu::store {

namespace {

struct Identity {
    dev_t device = 0;
    ino_t number = 0;
    bool operator==(const Identity&) const = default;
};

struct Peer {
    std::array<std::byte, 16> address{};  // an IPv6 address; IPv4 is mapped into it
    in_port_t port = 0;
    bool operator==(const Peer&) const = default;
};

struct Registry {
    std::mutex mutex;  // held during fork(), so that the child finds the registry whole
    std::map<int, Identity> descriptors;
    std::vector<Peer> peers;
    std::atomic<std::uint64_t> generation{0};
};

bool identify(int descriptor, Identity& identity) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) return false;
    identity = {info.st_dev, info.st_ino};
    return true;
}

bool to_peer(const sockaddr& address, Peer& peer) {
    if (address.sa_family == AF_INET6) {
        sockaddr_in6 found{};
        std::memcpy(&found, &address, sizeof found);
        std::memcpy(peer.address.data(), &found.sin6_addr, peer.address.size());
        peer.port = found.sin6_port;
        return true;
    }
    if (address.sa_family != AF_INET) return false;
    sockaddr_in found{};
    std::memcpy(&found, &address, sizeof found);
    peer.address[10] = peer.address[11] = std::byte{0xFF};
    std::memcpy(peer.address.data() + 12, &found.sin_addr, 4);
    peer.port = found.sin_port;
    return true;
}

Registry& registry();

// From here to in_child() nothing allocates memory: fork() may have copied another thread's unfinished allocation.
void replace(int descriptor, int nothing) {
    if (nothing < 0 || dup3(nothing, descriptor, O_CLOEXEC) < 0) close(descriptor);
}

void replace_if_connected(int descriptor, int nothing) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    Peer peer;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return;
    if (!to_peer(reinterpret_cast<const sockaddr&>(address), peer)) return;
    for (const Peer& kept : registry().peers) {
        if (kept == peer) return replace(descriptor, nothing);
    }
}

void replace_connections(int nothing) {
    if (registry().peers.empty()) return;
    const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    alignas(dirent64) std::array<char, 4096> entries{};
    while (true) {
        const long bytes = syscall(SYS_getdents64, folder, entries.data(), entries.size());
        if (bytes <= 0) break;
        for (long at = 0; at < bytes;) {
            const auto* entry = reinterpret_cast<const dirent64*>(entries.data() + at);
            at += entry->d_reclen;
            if (entry->d_name[0] != '.') replace_if_connected(std::atoi(entry->d_name), nothing);
        }
    }
    close(folder);
}

void before_fork() { registry().mutex.lock(); }
void in_parent() { registry().mutex.unlock(); }
void in_child() {
    Registry& all = registry();
    all.generation.fetch_add(1, std::memory_order_relaxed);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const auto& [descriptor, identity] : all.descriptors) {
        Identity found;
        if (identify(descriptor, found) && found == identity) replace(descriptor, nothing);
    }
    replace_connections(nothing);
    if (nothing >= 0) close(nothing);
    all.mutex.unlock();
}

Registry& registry() {
    static Registry* const only = [] {  // never destroyed: files may be closed at the very end of the process
        pthread_atfork(before_fork, in_parent, in_child);
        return new Registry;
    }();
    return *only;
}

}  // namespace

void keep_from_children(int descriptor) {
    Identity identity;
    if (!identify(descriptor, identity)) return;
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.descriptors[descriptor] = identity;
}

void forget_descriptor(int descriptor) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.descriptors.erase(descriptor);
}

void keep_connections_from_children(const sockaddr& peer) {
    Peer kept;
    if (!to_peer(peer, kept)) return;
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    for (const Peer& known : all.peers) {
        if (known == kept) return;
    }
    all.peers.push_back(kept);
}

MadeHere::MadeHere() : generation_(registry().generation.load(std::memory_order_relaxed)) {}

void MadeHere::require(const char* what) const {
    if (registry().generation.load(std::memory_order_relaxed) == generation_) return;
    throw Error(ErrorKind::forked, std::string(what) + " belongs to the process that opened it, and this process (" +
                                       std::to_string(getpid()) +
                                       ") was forked from that: use it there alone, or open another one here");
}

}  // namespace luwu::store
