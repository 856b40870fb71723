// Agreements of all participants of a job before its first packet, and the division of blocks into packets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "fabric/protocol/node.h"
#include "fabric/protocol/wire.h"
#include "kernels/dtype.h"
#include "kernels/fixed_point.h"
#include "store/layout.h"

namespace luwu::fabric {

// In nanoseconds. docs/timeouts.md has the values and what they are for.
struct NetworkTiming {
    Time heartbeat = 0;       // between two heartbeats while something changes
    Time idle_heartbeat = 0;  // while nothing does
    Time resend = 0;          // of no progress, before a sender sends again unasked
    Time longest_resend = 0;  // what that grows to
    Time queueing = 0;        // delay in queues on a link above which a sender slows down
};

// Each of them by its name among the settings and in control.proto, where it is in seconds.
struct NamedTiming {
    const char* name;
    Time NetworkTiming::* value;
};

inline constexpr std::array kTimings{
    NamedTiming{"heartbeat_seconds", &NetworkTiming::heartbeat},
    NamedTiming{"idle_heartbeat_seconds", &NetworkTiming::idle_heartbeat},
    NamedTiming{"resend_seconds", &NetworkTiming::resend},
    NamedTiming{"longest_resend_seconds", &NetworkTiming::longest_resend},
    NamedTiming{"queueing_seconds", &NetworkTiming::queueing},
};

struct WireBlock {
    std::uint64_t elements = 0;
    bool trainable = true;
    kernels::Dtype dtype = kernels::Dtype::float32;
};

struct Wiring {
    std::uint64_t job = 0;
    std::uint64_t key = 0;                             // of the packets' seal
    std::uint32_t epoch = 0;                           // the first; the server says when another begins
    std::uint32_t incarnation = 0;                     // of this participant: grows each time it is told its place
    std::uint32_t workers = 1;                         // of the whole job: leaves the sum room
    std::uint32_t payload_bytes = 0;                   // a multiple of LUWU_PAYLOAD_STEP
    luwu_form form = LUWU_INT32;                       // of gradients
    std::array<std::uint32_t, LUWU_STREAMS> window{};  // packets under way at most, by stream
    std::vector<WireBlock> blocks;                     // a switch knows none
    NetworkTiming timing;

    [[nodiscard]] std::uint64_t parameter_bytes(std::uint32_t block) const {
        return blocks[block].elements * kernels::size_of(blocks[block].dtype);
    }
    [[nodiscard]] std::uint64_t exponent_bytes(std::uint32_t block) const {
        return kernels::fixed_groups(blocks[block].elements);
    }
    [[nodiscard]] kernels::FixedForm fixed_form() const {  // of gradients that are not float32
        return form == LUWU_INT16 ? kernels::FixedForm::int16 : kernels::FixedForm::int32;
    }
    [[nodiscard]] std::uint64_t mantissa_bytes() const { return kernels::size_of(fixed_form()); }  // of one element
    [[nodiscard]] std::uint64_t gradient_bytes(std::uint32_t block) const {
        return blocks[block].elements * mantissa_bytes();
    }
    [[nodiscard]] std::uint64_t packets(std::uint64_t bytes) const {
        return (bytes + payload_bytes - 1) / payload_bytes;
    }
};

// A heartbeat's number has the participant's incarnation in the bits above these, so it grows over all incarnations. A
// clock would not do: it may start anew when its host is started again.
inline constexpr std::uint32_t kNumberBits = 40;
inline constexpr std::uint32_t kMostIncarnations = 1U << (64 - kNumberBits);

// Bounds of a stream's window, which both of its ends hold in memory: the server chooses it, and 6 MiB at most.
inline constexpr std::uint32_t kMostWindow = 1U << 18U;
inline constexpr std::uint64_t kMostWindowBytes = 64U << 20U;

// Throws Error(invalid) naming what cannot work.
const Wiring& check(const Wiring& wiring);  // returns it

[[nodiscard]] std::vector<WireBlock> wire_blocks(const store::StoreShape& shape);

// Packets that a node sends before it looks at arrivals, and again when nothing is acknowledged.
inline constexpr std::uint64_t kBurst = 256;
inline constexpr std::uint64_t kStallBurst = 64;

// The whole message that a packet is part of: packets `first` to `end` of its stream, one behind the other.
struct Message {
    std::uint32_t block = 0;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    std::uint64_t bytes = 0;

    [[nodiscard]] bool holds(std::uint64_t sequence) const { return sequence >= first && sequence < end; }
    // Offset of a packet's payload in the message, and its length.
    [[nodiscard]] std::uint64_t offset(std::uint64_t sequence, std::uint32_t payload_bytes) const {
        return (sequence - first) * payload_bytes;
    }
    [[nodiscard]] std::uint64_t length(std::uint64_t sequence, std::uint32_t payload_bytes) const {
        return std::min<std::uint64_t>(payload_bytes, bytes - offset(sequence, payload_bytes));
    }
};

}  // namespace luwu::fabric
