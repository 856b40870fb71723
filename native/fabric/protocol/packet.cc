#include "fabric/protocol/packet.h"

#include <algorithm>
#include <cstring>

namespace luwu::fabric {

namespace {

constexpr std::size_t kHeadWeights = 16;  // the first weights are the head's
constexpr std::size_t kHeadWords = 9;

constexpr std::array<const char*, kPacketDrops> kNames = {"truncated", "oversized", "magic", "version",  "job",
                                                          "epoch",     "checksum",  "kind",  "sender",   "form",
                                                          "window",    "duplicate", "block", "replayed", "not_ready"};

// Checksum of the head's fields that every contribution to a slot shares: without sender, count and checksum.
std::uint64_t head_sum(const std::uint32_t* weights, const Head& head) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&head);
    std::array<std::uint32_t, kHeadWords> words{};
    std::memcpy(words.data(), bytes, 16);                                 // magic to job
    std::memcpy(words.data() + 4, bytes + offsetof(Head, bytes), 4);      // bytes, form, flags
    std::memcpy(words.data() + 5, bytes + offsetof(Head, sequence), 16);  // sequence, block, index
    return kernels::weighted_sum(weights, words.data(), sizeof words, kernels::FixedForm::int32);
}

}  // namespace

const char* name_of(PacketDrop reason) { return kNames[static_cast<std::size_t>(reason)]; }

Seal::Seal(std::uint64_t job, std::uint64_t key, std::uint32_t most_payload)
    : job_(job),
      most_payload_(most_payload),
      weights_(key, kHeadWeights + std::max<std::size_t>(most_payload, sizeof(Heartbeat)) / 2) {}

std::uint64_t Seal::checksum_of(const Head& head, std::span<const std::byte> payload) const {
    const std::uint64_t times = std::max<std::uint64_t>(head.count, 1);
    const auto values = head.form == LUWU_INT16 ? kernels::FixedForm::int16 : kernels::FixedForm::int32;
    return times * head_sum(weights_.data(), head) +
           kernels::weighted_sum(weights_.data() + kHeadWeights, payload.data(), payload.size(), values);
}

void Seal::close(Head& head, std::span<const std::byte> payload) const {
    head.magic = LUWU_MAGIC;
    head.version = LUWU_PROTOCOL;
    head.job = job_;
    head.bytes = static_cast<std::uint16_t>(payload.size());
    head.checksum = checksum_of(head, payload);
}

bool Seal::open(std::span<const std::byte> datagram, Packet& packet, PacketDrops& drops) const {
    const auto drop = [&drops](PacketDrop reason) {
        ++drops[static_cast<std::size_t>(reason)];
        return false;
    };
    if (datagram.size() < sizeof(Head)) return drop(PacketDrop::truncated);
    std::memcpy(&packet.head, datagram.data(), sizeof(Head));
    packet.payload = datagram.subspan(sizeof(Head));
    const Head& head = packet.head;
    if (head.magic != LUWU_MAGIC) return drop(PacketDrop::magic);
    if (head.version != LUWU_PROTOCOL) return drop(PacketDrop::version);
    if (head.job != job_) return drop(PacketDrop::job);
    const std::size_t most = head.kind == LUWU_HEARTBEAT ? sizeof(Heartbeat) : most_payload_;
    if (packet.payload.size() < head.bytes) return drop(PacketDrop::truncated);
    if (packet.payload.size() > head.bytes || head.bytes > most) return drop(PacketDrop::oversized);
    if (head.checksum != checksum_of(head, packet.payload)) return drop(PacketDrop::checksum);
    return true;
}

}  // namespace luwu::fabric
