// Random packets, and how many of them the tests make: `make fuzz` asks for more than the everyday run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "fabric/protocol/packet.h"

namespace luwu::test {

[[nodiscard]] std::uint64_t fuzz_packets();

// Plausible packets, so that they get far: of epoch 3, from a parent or one of three children.
class Fuzz {
  public:
    // The datagram of a packet, sealed with the right key, or with one that differs from it by `key_change`.
    using Sealed = std::function<std::vector<std::byte>(fabric::Head, const std::vector<std::byte>& payload,
                                                        std::uint64_t key_change)>;

    Fuzz(std::uint64_t seed, std::vector<std::size_t> lengths, Sealed sealed);

    // With the right key, most of them, or with none.
    [[nodiscard]] std::vector<std::byte> packet(bool may_be_sealed);
    [[nodiscard]] std::uint64_t pick(std::uint64_t below) { return random_() % below; }

  private:
    [[nodiscard]] fabric::Head head();
    [[nodiscard]] std::vector<std::byte> payload(std::uint8_t kind);

    std::mt19937_64 random_;
    std::vector<std::size_t> lengths_;  // of payloads
    Sealed sealed_;
};

}  // namespace luwu::test
