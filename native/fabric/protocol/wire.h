// Wire format between workers, switches and the server, as docs/protocol.md describes it. Plain C: the same file is for
// C++ and for a switch inside the kernel. All fields are little-endian.
#pragma once

#ifdef __cplusplus
#include <cstdint>
extern "C" {
#else
#include <stdint.h>
#endif

enum {
    LUWU_MAGIC = 0x774c,  // "Lw"
    LUWU_PROTOCOL = 2,
    LUWU_FROM_PARENT = 0xffff,  // luwu_head.sender of packets on their way down
    LUWU_CONFLICT = 1,          // luwu_head.flags: the contributions did not agree on the block
    LUWU_PAYLOAD_STEP = 128,    // a payload's full length is a multiple, so that it holds whole groups of any form
    LUWU_MOST_PAYLOAD = 8832,   // what a frame of 9000 bytes carries
    LUWU_MOST_HOLES = 32,
};

enum luwu_kind {
    LUWU_PARAMETERS = 1,  // down: a part of a block's parameters
    LUWU_REQUEST = 2,     // up: the block that is pulled next
    LUWU_EXPONENTS = 3,   // up: exponents of a block's gradient; the largest of each is taken
    LUWU_AGREED = 4,      // down: the answer to LUWU_EXPONENTS, for all workers
    LUWU_GRADIENTS = 5,   // up: mantissas of a block's gradient; they are added
    LUWU_HEARTBEAT = 6,   // both ways, over one link: struct luwu_heartbeat
};

enum luwu_form { LUWU_BYTES = 0, LUWU_INT16 = 1, LUWU_INT32 = 2, LUWU_FLOAT32 = 3 };

// Streams number their packets each for itself, from 0 in every epoch.
enum luwu_stream {
    LUWU_STREAM_PARAMETERS = 0,  // down
    LUWU_STREAM_REQUESTS = 1,    // up
    LUWU_STREAM_EXPONENTS = 2,   // up; the answers come down under the same numbers
    LUWU_STREAM_GRADIENTS = 3,   // up
    LUWU_STREAMS = 4,
};

struct luwu_head {
    uint16_t magic;
    uint8_t version;
    uint8_t kind;    // enum luwu_kind
    uint32_t epoch;  // of the job's streams: packets of another one are stale
    uint64_t job;
    uint16_t sender;  // going up: the sender's number among its parent's children; else LUWU_FROM_PARENT
    uint16_t count;   // going up: workers whose contribution is in here; else 0
    uint16_t bytes;   // of the payload
    uint8_t form;     // enum luwu_form of the payload
    uint8_t flags;
    uint64_t sequence;  // in its stream; of a heartbeat: its number, which only grows
    uint32_t block;
    uint32_t index;     // of the packet within its message
    uint64_t checksum;  // docs/protocol.md: adds up as the payloads do
};

struct luwu_hole {
    uint64_t first;
    uint32_t length;
    uint32_t stream;
};

// The whole state of one end of a link, so that the next heartbeat replaces a lost one. `next` is of streams that this
// end sends in; `ack`, `credit`, `heard` and the holes are of streams that it receives.
struct luwu_heartbeat {
    uint64_t time;                  // the sender's clock, in nanoseconds
    uint64_t echo;                  // `time` of the last heartbeat from the other end
    uint64_t held;                  // how long ago that came, in nanoseconds
    uint64_t next[LUWU_STREAMS];    // one past the last packet sent
    uint64_t ack[LUWU_STREAMS];     // all below arrived at the far end of the tree
    uint64_t credit[LUWU_STREAMS];  // packets below may be sent
    uint64_t heard[LUWU_STREAMS];   // all below arrived at this end of the link
    uint32_t holes_used;
    uint32_t below;         // microseconds that packets wait in queues further down the tree, on the worst way
    uint32_t marked;        // packets of the other end, in this epoch, that a queue has marked on the worst way
    uint32_t counts_marks;  // 1: they are counted; 0: not, and marked packets are not to be sent
    struct luwu_hole holes[LUWU_MOST_HOLES];  // missing at this end; only those used are sent
};

#ifdef __cplusplus
}

#include <bit>
#include <cstddef>

namespace luwu::fabric {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and nothing swaps bytes yet");
static_assert(sizeof(luwu_head) == 48 && offsetof(luwu_head, sender) == 16 && offsetof(luwu_head, checksum) == 40);
static_assert(offsetof(luwu_heartbeat, holes) == 168 && sizeof(luwu_hole) == 16);

using Head = luwu_head;
using Hole = luwu_hole;
using Heartbeat = luwu_heartbeat;

}  // namespace luwu::fabric
#endif
