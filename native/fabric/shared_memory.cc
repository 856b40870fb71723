#include "fabric/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "store/files.h"

namespace luwu::fabric {

MemoryFile::MemoryFile(const char* name, std::uint64_t bytes)
    : descriptor_(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (descriptor_ < 0) throw store::system_error("create shared memory", name, errno);
    if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 ||
        fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        const int error_number = errno;
        close(descriptor_);
        throw store::system_error("size shared memory", name, error_number);
    }
}

MemoryFile::~MemoryFile() {
    if (descriptor_ >= 0) close(descriptor_);
}

Mapping::Mapping(int descriptor, MapMode mode) {
    struct stat info{};
    if (fstat(descriptor, &info) != 0) throw store::system_error("look at", "shared memory", errno);
    bytes_ = static_cast<std::uint64_t>(info.st_size);
    if (bytes_ == 0) return;
    const int flags = mode == MapMode::shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (memory == MAP_FAILED) throw store::system_error("map", "shared memory", errno);
    data_ = static_cast<std::byte*>(memory);
}

Mapping::~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

void Mapping::forget(std::uint64_t offset, std::uint64_t bytes) const { madvise(data_ + offset, bytes, MADV_DONTNEED); }

}  // namespace luwu::fabric
