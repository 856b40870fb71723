// Common parts of the code that talks to libbpf: its messages as text, errors with advice, and maps as memory.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "store/error.h"

namespace luwu::switching {

// libbpf prints through one function of the process: one thread at a time has it collected.
[[nodiscard]] std::mutex& libbpf_turn();
class LibbpfMessages {
  public:
    LibbpfMessages();
    ~LibbpfMessages();
    LibbpfMessages(const LibbpfMessages&) = delete;
    LibbpfMessages& operator=(const LibbpfMessages&) = delete;
    [[nodiscard]] std::string text() const;  // the end of what it said
};

[[nodiscard]] Error xdp_error(const std::string& action, int error_number, const std::string& said);

// A map with BPF_F_MMAPABLE.
class MappedMap {
  public:
    MappedMap() = default;
    MappedMap(int descriptor, std::size_t bytes);  // throws Error(io)
    ~MappedMap();
    MappedMap(MappedMap&& other) noexcept { *this = std::move(other); }
    MappedMap& operator=(MappedMap&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace luwu::switching
