// A datagram: told apart by what is wrong with it, or exactly what sealing its head and payload gives.
#include "fabric/protocol/packet.h"

#include "target.h"

namespace {

using namespace luwu::fabric;

constexpr std::uint32_t kMostPayload = 256;
constexpr std::size_t kSealed = 1;  // of the mode: the rest is sealed with the job's key
constexpr std::size_t kLength = 2;  // but the length of its payload is the input's

const Seal& seal() {
    static const Seal one(5, 99, kMostPayload);
    return one;
}

std::vector<std::byte> datagram_of(luwu::fuzz::Input& input) {
    const std::size_t mode = input.number();
    std::vector<std::byte> datagram = luwu::fuzz::copy_of(input.rest());
    if (datagram.size() < sizeof(Head)) return datagram;
    Head head;
    std::memcpy(&head, datagram.data(), sizeof head);
    const std::span payload(datagram.data() + sizeof head, datagram.size() - sizeof head);
    const std::uint16_t told = head.bytes;
    if ((mode & kSealed) != 0 && payload.size() <= sizeof(Heartbeat)) {
        seal().close(head, payload);
        if ((mode & kLength) != 0) {
            head.bytes = told;
            head.checksum = seal().checksum_of(head, payload);
        }
    }
    std::memcpy(datagram.data(), &head, sizeof head);
    return datagram;
}

}  // namespace

LUWU_FUZZ_TARGET("packet") {
    luwu::fuzz::Input input(data);
    const std::vector<std::byte> datagram = datagram_of(input);
    Packet packet{};
    PacketDrops drops{};
    const bool opened = seal().open(datagram, packet, drops);
    std::uint64_t dropped = 0;
    for (std::size_t reason = 0; reason < drops.size(); ++reason) {
        dropped += drops[reason];
        luwu::fuzz::require(std::strlen(name_of(static_cast<PacketDrop>(reason))) > 0, "every reason has a name");
    }
    luwu::fuzz::require(dropped == (opened ? 0 : 1), "a packet is opened, or counted once");
    if (!opened) return;
    Head again = packet.head;
    seal().close(again, packet.payload);
    luwu::fuzz::require(std::memcmp(&again, datagram.data(), sizeof again) == 0, "sealing gives the same head");
    luwu::fuzz::require(packet.payload.size() + sizeof again == datagram.size(), "the payload is all that follows");
}
