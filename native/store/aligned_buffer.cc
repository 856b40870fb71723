#include "store/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

#include "store/layout.h"
#include "store/numa.h"

namespace luwu::store {

AlignedBuffer::AlignedBuffer(std::uint64_t bytes, Sharing sharing)
    : bytes_(round_up(bytes, bytes >= kHugePage ? kHugePage : kPage)) {
    const int flags = MAP_ANONYMOUS | (sharing == Sharing::shared ? MAP_SHARED : MAP_PRIVATE);
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(memory);
    ask_for_huge_pages({data_, bytes_});
}

AlignedBuffer::~AlignedBuffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace luwu::store
