#include "fabric/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "store/files.h"
#include "store/numa.h"

namespace luwu::fabric {

namespace {

// The bits of an entry of /proc/PID/pagemap (the kernel's documentation, admin-guide/mm/pagemap).
constexpr std::uint64_t kInMemory = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwappedOut = std::uint64_t{1} << 62;
constexpr std::uint64_t kOfTheFile = std::uint64_t{1} << 61;

}  // namespace

MemoryFile::MemoryFile(const char* name, std::uint64_t bytes)
    : descriptor_(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (descriptor() < 0) throw store::system_error("create shared memory", name, errno);
    if (ftruncate(descriptor(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        throw store::system_error("size shared memory", name, errno);
    }
}

Mapping::Mapping(int descriptor, MapMode mode) : mode_(mode) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) throw store::system_error("look at", "shared memory", errno);
    bytes_ = static_cast<std::uint64_t>(info.st_size);
    if (bytes_ == 0) return;
    const int flags = mode == MapMode::shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (memory == MAP_FAILED) throw store::system_error("map", "shared memory", errno);
    data_ = static_cast<std::byte*>(memory);
    if (mode == MapMode::shared) store::ask_for_huge_pages({data_, bytes_});
    if (mode == MapMode::private_copy) page_map_ = Descriptor(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
}

Mapping::~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

void Mapping::forget(std::uint64_t offset, std::uint64_t bytes) const { madvise(data_ + offset, bytes, MADV_DONTNEED); }

void Mapping::discard(std::uint64_t offset, std::uint64_t bytes) const { madvise(data_ + offset, bytes, MADV_REMOVE); }

bool Mapping::written(std::uint64_t offset, std::uint64_t bytes) const {
    if (mode_ == MapMode::shared) return false;
    std::array<std::uint64_t, 512> entries{};
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(data_) + offset;
    const std::uint64_t end = (begin + bytes + page - 1) / page;
    for (std::uint64_t next = begin / page; next < end; next += entries.size()) {
        const std::uint64_t count = std::min<std::uint64_t>(entries.size(), end - next);
        const auto wanted = static_cast<ssize_t>(count * sizeof entries[0]);
        const auto at = static_cast<off_t>(next * sizeof entries[0]);
        if (pread(page_map_.get(), entries.data(), static_cast<std::size_t>(wanted), at) != wanted)
            return true;  // the kernel does not tell
        // Before Linux 6.11 a huge page of the file has not this bit, and counts as written: it is mapped again.
        if (std::any_of(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(count), [](std::uint64_t entry) {
                return (entry & (kInMemory | kSwappedOut)) != 0 && (entry & kOfTheFile) == 0;
            })) {
            return true;
        }
    }
    return false;
}

}  // namespace luwu::fabric
