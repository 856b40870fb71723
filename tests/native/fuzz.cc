#include "fuzz.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "fabric/core/clock.h"

namespace luwu::test {

std::uint64_t fuzz_packets() {
    const char* text = std::getenv("LUWU_FUZZ_PACKETS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 60'000;
}

Fuzz::Fuzz(std::uint64_t seed, std::vector<std::size_t> lengths, Sealed sealed)
    : random_(seed), lengths_(std::move(lengths)), sealed_(std::move(sealed)) {}

fabric::Head Fuzz::head() {
    fabric::Head head{};
    head.kind = static_cast<std::uint8_t>(pick(8));
    head.epoch = 3 + static_cast<std::uint32_t>(pick(16) == 0 ? pick(3) - 1 : 0);
    head.sender = pick(2) == 0 ? std::uint16_t{LUWU_FROM_PARENT} : static_cast<std::uint16_t>(pick(3));
    head.count = static_cast<std::uint16_t>(pick(3));
    head.form = static_cast<std::uint8_t>(pick(5));
    head.flags = static_cast<std::uint8_t>(pick(64) == 0);
    head.sequence = pick(4) == 0 ? random_() >> pick(64) : pick(80);
    head.block = static_cast<std::uint32_t>(pick(16) == 0 ? random_() : pick(4));
    head.index = static_cast<std::uint32_t>(pick(4) == 0 ? random_() : pick(20));
    return head;
}

std::vector<std::byte> Fuzz::payload(std::uint8_t kind) {
    std::vector<std::byte> payload(lengths_[pick(lengths_.size())]);
    for (std::size_t i = 0; i + 8 <= payload.size(); i += 8) {
        const std::uint64_t word = pick(3) == 0 ? random_() >> pick(64) : pick(100);
        std::memcpy(payload.data() + i, &word, 8);
    }
    if (kind == LUWU_HEARTBEAT && payload.size() >= offsetof(fabric::Heartbeat, holes) && pick(2) == 0) {
        const std::uint64_t holes = (payload.size() - offsetof(fabric::Heartbeat, holes)) / sizeof(fabric::Hole);
        std::memcpy(payload.data() + offsetof(fabric::Heartbeat, holes_used), &holes, 4);
    }
    return payload;
}

std::vector<std::byte> Fuzz::packet(bool may_be_sealed) {
    const fabric::Head made = head();
    const std::vector<std::byte> body = payload(made.kind);
    if (may_be_sealed && pick(8) != 0) return sealed_(made, body, 0);
    std::vector<std::byte> bytes = sealed_(made, body, 1 + pick(20));
    if (pick(2) == 0) bytes.resize(pick(bytes.size() + 1));
    return bytes;
}

}  // namespace luwu::test
