#include "store/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

#include "store/layout.h"

namespace luwu::store {

namespace {
constexpr std::uint64_t kHugePage = 2U << 20;
}

AlignedBuffer::AlignedBuffer(std::uint64_t bytes) : bytes_(round_up(bytes, bytes >= kHugePage ? kHugePage : kPage)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (bytes_ >= kHugePage) madvise(memory, bytes_, MADV_HUGEPAGE);  // a hint: refusal changes speed only
    data_ = static_cast<std::byte*>(memory);
}

AlignedBuffer::~AlignedBuffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace luwu::store
