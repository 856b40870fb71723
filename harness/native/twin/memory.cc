#include "twin/memory.h"

#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace luwu::twin {

namespace {

constexpr unsigned kMostBuffers = 256;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one registered buffer, by the kernel's rule
constexpr int kUnset = 0xff;
constexpr std::size_t kMostFreed = 32;

void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("the twin: ") + what);
}

}  // namespace

struct Dma::Ring {
    io_uring ring{};
    std::vector<std::byte*> buffers = std::vector<std::byte*>(kMostBuffers);  // by number; null: free
    std::vector<std::size_t> bytes = std::vector<std::size_t>(kMostBuffers);

    void set(unsigned number, std::byte* memory, std::size_t size) {
        buffers[number] = memory;
        bytes[number] = size;
    }
};

Dma::Dma() : ring_(std::make_unique<Ring>()) {
    require(io_uring_queue_init(8, &ring_->ring, 0) == 0, "no io_uring");
    require(io_uring_register_buffers_sparse(&ring_->ring, kMostBuffers) == 0, "no registered buffers");
}

Dma::~Dma() { io_uring_queue_exit(&ring_->ring); }

bool Dma::add(std::byte* memory, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += kMostBytes) {
        const auto free = std::find(ring_->buffers.begin(), ring_->buffers.end(), nullptr);
        if (free == ring_->buffers.end()) return false;
        const auto number = static_cast<unsigned>(free - ring_->buffers.begin());
        const std::size_t size = std::min(kMostBytes, bytes - done);
        const iovec vector{memory + done, size};
        if (io_uring_register_buffers_update_tag(&ring_->ring, number, &vector, nullptr, 1) != 1) return false;
        ring_->set(number, memory + done, size);
    }
    return true;
}

void Dma::remove(std::byte* memory) {
    std::byte* next = memory;
    for (unsigned number = 0; number < kMostBuffers; ++number) {
        if (ring_->buffers[number] != next || next == nullptr) continue;
        const iovec none{nullptr, 0};
        io_uring_register_buffers_update_tag(&ring_->ring, number, &none, nullptr, 1);
        next = ring_->bytes[number] == kMostBytes ? next + kMostBytes : nullptr;
        ring_->set(number, nullptr, 0);
    }
}

void Dma::read(std::byte* into, int file, std::uint64_t offset, std::size_t bytes) {
    transfer(into, file, offset, bytes, false);
}

void Dma::write(const std::byte* from, int file, std::uint64_t offset, std::size_t bytes) {
    transfer(const_cast<std::byte*>(from), file, offset, bytes, true);
}

void Dma::transfer(std::byte* host, int file, std::uint64_t offset, std::size_t bytes, bool to_file) {
    while (bytes > 0) {
        unsigned number = 0;
        while (number < kMostBuffers &&
               !(ring_->buffers[number] <= host && host < ring_->buffers[number] + ring_->bytes[number])) {
            ++number;
        }
        require(number < kMostBuffers, "a copy from or to memory that is not registered");
        const std::size_t left = ring_->bytes[number] - static_cast<std::size_t>(host - ring_->buffers[number]);
        const auto size = static_cast<unsigned>(std::min({bytes, left, kMostBytes / 2}));
        io_uring_sqe* entry = io_uring_get_sqe(&ring_->ring);
        if (to_file) {
            io_uring_prep_write_fixed(entry, file, host, size, offset, static_cast<int>(number));
        } else {
            io_uring_prep_read_fixed(entry, file, host, size, offset, static_cast<int>(number));
        }
        require(io_uring_submit_and_wait(&ring_->ring, 1) == 1, "io_uring took no request");
        io_uring_cqe* done = nullptr;
        require(io_uring_wait_cqe(&ring_->ring, &done) == 0, "io_uring gave no answer");
        const int moved = done->res;
        io_uring_cqe_seen(&ring_->ring, done);
        require(moved > 0, "io_uring copied nothing");
        host += moved;
        offset += static_cast<unsigned>(moved);
        bytes -= static_cast<unsigned>(moved);
    }
}

Memory::~Memory() {
    for (const auto& [address, piece] : device_) {
        munmap(piece.data, piece.bytes);
        close(piece.file);
    }
}

std::uint64_t Memory::allocate(std::size_t bytes) {
    const int file = memfd_create("twin", MFD_CLOEXEC);
    require(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "no memory");
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(data != MAP_FAILED, "no memory");
    if (!weightless_) std::memset(data, kUnset, bytes);
    const auto address = reinterpret_cast<std::uint64_t>(data);
    device_[address] = {static_cast<std::byte*>(data), bytes, file, true};
    most_device_bytes_ = std::max(most_device_bytes_, device_bytes());
    return address;
}

bool Memory::free(std::uint64_t address) {
    const auto found = device_.find(address);
    if (found == device_.end() || !found->second.live) return false;
    found->second.live = false;
    if (!weightless_) std::memset(found->second.data, kUnset, found->second.bytes);
    freed_.push_back(address);
    if (freed_.size() > kMostFreed) {
        const Piece& oldest = device_.at(freed_.front());
        munmap(oldest.data, oldest.bytes);
        close(oldest.file);
        device_.erase(freed_.front());
        freed_.pop_front();
    }
    return true;
}

bool Memory::add(std::byte* memory, std::size_t bytes) {
    if (registered_.contains(memory) || (!weightless_ && !dma_.add(memory, bytes))) return false;
    registered_[memory] = bytes;
    return true;
}

bool Memory::remove(std::byte* memory) {
    if (registered_.erase(memory) == 0) return false;
    if (!weightless_) dma_.remove(memory);
    return true;
}

bool Memory::is_registered(const std::byte* memory, std::size_t bytes) const {
    const auto after = registered_.upper_bound(memory);
    if (after == registered_.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return memory + bytes <= begin + size;
}

const Memory::Piece* Memory::piece_of(std::uint64_t address, std::size_t bytes) const {
    const auto after = device_.upper_bound(address);
    if (after == device_.begin()) return nullptr;
    const auto& [begin, piece] = *std::prev(after);
    return piece.live && address + bytes <= begin + piece.bytes ? &piece : nullptr;
}

bool Memory::is_allocated(std::uint64_t address, std::size_t bytes) const {
    return piece_of(address, bytes) != nullptr;
}

void Memory::to_device(std::uint64_t to, const std::byte* from, std::size_t bytes) {
    const Piece* piece = piece_of(to, bytes);
    if (!weightless_ && piece != nullptr) {
        dma_.write(from, piece->file, to - reinterpret_cast<std::uint64_t>(piece->data), bytes);
    }
}

void Memory::to_host(std::byte* to, std::uint64_t from, std::size_t bytes) {
    const Piece* piece = piece_of(from, bytes);
    if (!weightless_ && piece != nullptr) {
        dma_.read(to, piece->file, from - reinterpret_cast<std::uint64_t>(piece->data), bytes);
    }
}

std::size_t Memory::allocated_at(std::uint64_t address) const {
    const auto found = device_.find(address);
    return found == device_.end() || !found->second.live ? 0 : found->second.bytes;
}

std::size_t Memory::registered_at(const std::byte* memory) const {
    const auto found = registered_.find(memory);
    return found == registered_.end() ? 0 : found->second;
}

std::size_t Memory::registered_bytes() const {
    std::size_t total = 0;
    for (const auto& [memory, bytes] : registered_) total += bytes;
    return total;
}

std::size_t Memory::device_bytes() const {
    std::size_t total = 0;
    for (const auto& [address, piece] : device_) total += piece.live ? piece.bytes : 0;
    return total;
}

}  // namespace luwu::twin
