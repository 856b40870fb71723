// The twin's memory: the device's, host memory that is registered, and the copies between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace luwu::twin {

// Copies between host memory that was registered with it and files, by pages and not by addresses.
class Dma {
  public:
    Dma();
    ~Dma();
    Dma(const Dma&) = delete;
    Dma& operator=(const Dma&) = delete;
    [[nodiscard]] bool add(std::byte* memory, std::size_t bytes);
    void remove(std::byte* memory);
    void read(std::byte* into, int file, std::uint64_t offset, std::size_t bytes);         // from the file
    void write(const std::byte* from, int file, std::uint64_t offset, std::size_t bytes);  // to the file

  private:
    struct Ring;
    void transfer(std::byte* host, int file, std::uint64_t offset, std::size_t bytes, bool to_file);
    std::unique_ptr<Ring> ring_;
};

class Memory {
  public:
    explicit Memory(bool weightless) : weightless_(weightless) {}
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    [[nodiscard]] std::uint64_t allocate(std::size_t bytes);
    [[nodiscard]] bool free(std::uint64_t address);  // false: not allocated
    [[nodiscard]] bool add(std::byte* memory, std::size_t bytes);
    [[nodiscard]] bool remove(std::byte* memory);  // false: not registered
    [[nodiscard]] bool is_registered(const std::byte* memory, std::size_t bytes) const;
    [[nodiscard]] bool is_allocated(std::uint64_t address, std::size_t bytes) const;
    void to_device(std::uint64_t to, const std::byte* from, std::size_t bytes);
    void to_host(std::byte* to, std::uint64_t from, std::size_t bytes);
    // The size of what is allocated at this address, and registered at this one.
    [[nodiscard]] std::size_t allocated_at(std::uint64_t address) const;
    [[nodiscard]] std::size_t registered_at(const std::byte* memory) const;

    [[nodiscard]] std::size_t registered_bytes() const;
    [[nodiscard]] std::size_t device_bytes() const;
    [[nodiscard]] std::size_t most_device_bytes() const { return most_device_bytes_; }

  private:
    struct Piece {
        std::byte* data;
        std::size_t bytes;
        int file;
        bool live;
    };
    [[nodiscard]] const Piece* piece_of(std::uint64_t address, std::size_t bytes) const;

    bool weightless_;
    Dma dma_;
    std::map<std::uint64_t, Piece> device_;
    std::deque<std::uint64_t> freed_;  // the last ones stay, so that who still reads them reads nonsense
    std::map<const std::byte*, std::size_t> registered_;
    std::size_t most_device_bytes_ = 0;
};

}  // namespace luwu::twin
