// Packets of one job: sealing them, and telling why one is not to be trusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/protocol/wire.h"
#include "kernels/weighted_sum.h"

namespace luwu::fabric {

enum class PacketDrop : std::uint8_t {
    truncated,  // shorter than a head, or than its head says
    oversized,  // longer than its head says, or than this job's packets are
    magic,      // not LuWu's
    version,    // of another protocol version
    job,        // of another job
    epoch,      // of another epoch: stale
    checksum,   // damaged, or sealed without this job's key
    kind,       // of no kind that comes this way
    sender,     // from an address or a child number that is not ours
    form,       // a payload of another form or length than the block has there
    window,     // outside what was granted: replayed, or ahead of its time
    duplicate,  // arrived before; counted once
    block,      // names another block or part than its place in the stream
    replayed,   // a heartbeat older than the last one
    not_ready,  // before this node knew enough to use it; it will be sent again
};
inline constexpr std::size_t kPacketDrops = 15;
[[nodiscard]] const char* name_of(PacketDrop reason);

using PacketDrops = std::array<std::uint64_t, kPacketDrops>;

struct Packet {
    Head head;
    std::span<const std::byte> payload;
};

// The checksum is keyed and linear: that of a sum of payloads is the sum of theirs. A stranger who cannot see the
// job's packets cannot make one that passes but by a chance of 2^-31; it is no cryptographic proof.
class Seal {
  public:
    Seal(std::uint64_t job, std::uint64_t key, std::uint32_t most_payload);

    [[nodiscard]] std::uint64_t job() const { return job_; }
    // Fills in magic, version, job, bytes and checksum; count is 0 for packets that are not added up.
    void close(Head& head, std::span<const std::byte> payload) const;
    [[nodiscard]] std::uint64_t checksum_of(const Head& head, std::span<const std::byte> payload) const;
    // Reads a datagram into `packet`. Returns false and counts the reason if it is not a whole packet of this job.
    [[nodiscard]] bool open(std::span<const std::byte> datagram, Packet& packet, PacketDrops& drops) const;

  private:
    std::uint64_t job_;
    std::uint32_t most_payload_;
    kernels::Weights weights_;
};

}  // namespace luwu::fabric
