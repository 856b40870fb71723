// The first bytes of a TCP connection.
#include "fabric/tcp/frames.h"
#include "kernels/crc32c.h"
#include "target.h"

LUWU_FUZZ_TARGET("hello") {
    using namespace luwu::fabric;
    constexpr std::size_t kChecked = 76;  // bytes that the checksum covers
    constexpr std::size_t kMeant = 72;    // of them, those that have a meaning
    luwu::fuzz::Input input(data);
    const bool sealed = input.number() % 2 != 0;
    std::array<std::byte, kHelloBytes> bytes{};
    const luwu::fuzz::Bytes given = input.bytes(bytes.size());
    std::copy(given.begin(), given.end(), bytes.begin());
    if (sealed) {
        const std::uint32_t crc = luwu::kernels::crc32c(0, bytes.data(), kChecked);
        std::memcpy(&bytes[kChecked], &crc, sizeof crc);
    }
    try {
        const Hello hello = decode_hello(bytes);
        const auto again = encode(hello);
        luwu::fuzz::require(std::memcmp(again.data(), bytes.data(), kMeant) == 0,
                            "a hello is what it was encoded from");
    } catch (const Dropped& dropped) {
        const Drop why = dropped.reason();
        luwu::fuzz::require(
            why == Drop::stranger || why == Drop::version || why == Drop::checksum || why == Drop::malformed,
            "a hello is refused for what is wrong with it");
        luwu::fuzz::require(!sealed || why != Drop::checksum, "the right checksum is not called wrong");
    }
    luwu::fuzz::require(std::string(name_of(static_cast<Drop>(bytes[0]))) != "", "any number has a name");
}
