// Memory shared between processes without a name in any file system: it is gone when the last process is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "fabric/core/descriptor.h"

namespace luwu::fabric {

// An anonymous file in memory (memfd), sealed against resizing. Throws Error(io).
class MemoryFile {
  public:
    MemoryFile() = default;
    MemoryFile(const char* name, std::uint64_t bytes);
    [[nodiscard]] int descriptor() const { return descriptor_.get(); }

  private:
    Descriptor descriptor_;
};

// shared: writes are seen by all. private_copy: writes stay in this process, and only until forget(); pages that were
// not written show what others write.
enum class MapMode : std::uint8_t { shared, private_copy };

class Mapping {
  public:
    Mapping() = default;
    Mapping(int descriptor, MapMode mode);  // the whole file; throws Error(io)
    ~Mapping();
    Mapping(Mapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          mode_(other.mode_),
          page_map_(std::move(other.page_map_)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mode_, other.mode_);
        std::swap(page_map_, other.page_map_);
        return *this;
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Drops this process's pages of a range (page aligned): its resident memory shrinks, the shared contents stay.
    void forget(std::uint64_t offset, std::uint64_t bytes) const;
    // Frees the memory of the file, or of a range of it (page aligned), for all: it reads as zeros.
    void discard() const { discard(0, bytes_); }
    void discard(std::uint64_t offset, std::uint64_t bytes) const;
    // True if this process may have writes of its own in a range (page aligned): in a private copy, since it last
    // forgot the range; never in shared memory.
    [[nodiscard]] bool written(std::uint64_t offset, std::uint64_t bytes) const;

  private:
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
    MapMode mode_ = MapMode::shared;
    Descriptor page_map_;  // /proc/self/pagemap, of a private copy
};

}  // namespace luwu::fabric
