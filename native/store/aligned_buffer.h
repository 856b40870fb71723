// Page-aligned anonymous memory, given back when the owner goes. Large ones ask for huge pages (fewer pins per direct
// I/O).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace luwu::store {

// As processes share it, or not: the system may give huge pages to one kind and not to the other.
enum class Sharing : std::uint8_t { own, shared };

class AlignedBuffer {
  public:
    AlignedBuffer() = default;
    explicit AlignedBuffer(std::uint64_t bytes, Sharing sharing = Sharing::own);  // zeroed; throws std::bad_alloc
    ~AlignedBuffer();
    AlignedBuffer(AlignedBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    AlignedBuffer(const AlignedBuffer&) = delete;
    AlignedBuffer& operator=(const AlignedBuffer&) = delete;

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace luwu::store
