// A network interface that is read and written frame by frame, past the machine's own network code.
#pragma once

#include <linux/if_packet.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace luwu::wire {

struct Received {
    std::span<std::uint8_t> bytes;  // in the ring, writable
    std::uint64_t length = 0;       // of the whole frame, of which the ring may have kept less
    bool checksum_missing = false;  // left to a device that is not there
};

// Throws std::system_error where the kernel refuses.
class Interface {
  public:
    // Frames that come in wait in a ring of `ring_bytes`, in places for frames of `frame_bytes`.
    Interface(const std::string& name, std::uint64_t frame_bytes, std::uint64_t ring_bytes);
    ~Interface();
    Interface(const Interface&) = delete;
    Interface& operator=(const Interface&) = delete;

    // The frame at `place` (0: the oldest not yet given back), if it has come.
    [[nodiscard]] bool peek(std::uint32_t place, Received& frame) const;
    void give_back(std::uint32_t count);
    [[nodiscard]] std::uint32_t places() const { return slots_; }

    // Sends all, in order; how many the kernel refused, as it does while the link is down.
    std::uint64_t send(const std::vector<std::span<const std::uint8_t>>& frames) const;

    [[nodiscard]] std::uint64_t missed();  // frames that found the ring full, so far
    [[nodiscard]] int descriptor() const { return descriptor_; }
    void clear_error() const;  // a link that went down leaves one behind

  private:
    [[nodiscard]] tpacket2_hdr* header(std::uint32_t place) const;
    void make_ring(std::uint64_t frame_bytes, std::uint64_t ring_bytes);
    void bind_to(const std::string& name) const;

    int descriptor_ = -1;
    std::uint8_t* ring_ = nullptr;
    std::uint64_t ring_bytes_ = 0;
    std::uint32_t slot_bytes_ = 0;
    std::uint32_t slots_per_block_ = 0;
    std::uint32_t block_bytes_ = 0;
    std::uint32_t slots_ = 0;
    std::uint32_t oldest_ = 0;
    std::uint64_t missed_ = 0;
};

}  // namespace luwu::wire
