#include "fabric/shm/control.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace luwu::fabric {

namespace {

constexpr std::uint64_t kLine = 64;

std::uint64_t workers_offset(std::uint32_t blocks) {
    return store::round_up(sizeof(ControlArea) + blocks * sizeof(std::uint64_t), kLine);
}

// Words are shared between processes, so the futexes are not private ones.
long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
    static_assert(sizeof word == sizeof(std::uint32_t));
    return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

std::uint64_t control_bytes(std::uint32_t workers, std::uint32_t blocks) {
    return store::round_up(workers_offset(blocks) + workers * sizeof(WorkerArea), store::kPage);
}

std::uint64_t* block_bytes_table(ControlArea& control) {
    return reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(&control) + sizeof(ControlArea));
}

WorkerArea& worker_area(ControlArea& control, std::uint32_t rank) {
    auto* areas = reinterpret_cast<std::byte*>(&control) + workers_offset(control.blocks);
    return *(reinterpret_cast<WorkerArea*>(areas) + rank);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds at_most) {
    const timespec timeout{at_most.count() / 1000, (at_most.count() % 1000) * 1'000'000};
    futex(word, FUTEX_WAIT, seen, &timeout);
}

void futex_wake(const std::atomic<std::uint32_t>& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

}  // namespace luwu::fabric
