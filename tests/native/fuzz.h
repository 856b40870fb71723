// How many random packets the tests make: `make fuzz` asks for more than the everyday run.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace luwu::test {

inline std::uint64_t fuzz_packets() {
    const char* text = std::getenv("LUWU_FUZZ_PACKETS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 60'000;
}

}  // namespace luwu::test
