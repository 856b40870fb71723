// Maps that the XDP switch (bpf/) and its controller (switch/xdp_program.h) share: their layout. Plain C.
#pragma once

#include "fabric/protocol/wire.h"

enum {
    LUWU_XDP_MOST_CHILDREN = 64,  // one bit each in luwu_slot.arrived
    LUWU_XDP_PARENT = LUWU_XDP_MOST_CHILDREN,
    LUWU_XDP_PEERS = LUWU_XDP_MOST_CHILDREN + 1,
    LUWU_XDP_WORDS = LUWU_MOST_PAYLOAD / 8,
    // luwu_head.sender of a packet that completed a sum which the program could not send: the controller does. No child
    // has this number.
    LUWU_TO_CONTROLLER = 0xfffe,
};

// Counters of the program, each a map entry per processor.
enum luwu_xdp_count {
    LUWU_XDP_PACKETS_IN,   // that it dealt with itself
    LUWU_XDP_PACKETS_OUT,  // copies and sums
    LUWU_XDP_SUMS_SENT,
    LUWU_XDP_SUMS_AGAIN,
    LUWU_XDP_DUPLICATES,
    LUWU_XDP_COUNTS,
};

// IPv4, in network byte order.
struct luwu_peer {
    uint32_t address;
    uint16_t port;
    uint16_t unused;
};

// Constants of a job, as long as the program is loaded: known to the verifier and to the JIT compiler.
struct luwu_job {
    uint64_t job;
    uint64_t all_children;   // their bits
    struct luwu_peer own;    // where the switch is sent to
    uint32_t slots_mask;     // slots are a power of two, at least as many as the window
    uint32_t window;         // of gradients
    uint32_t payload_bytes;  // of a full packet
    uint16_t children;
    uint16_t child;  // this switch's number among its parent's children
    struct luwu_peer peers[LUWU_XDP_PEERS];
};

// Position of the job in the stream of gradients. The fields that are written for each sum have a cache line of their
// own, because every processor reads the rest for every packet.
struct luwu_state {
    uint32_t epoch;       // by the controller; as the rest but sent_end
    uint32_t ready;       // it has heard from the parent: base is right
    uint64_t base;        // the parent has all sums below
    uint32_t broadcasts;  // every child's path is known
    uint32_t unused[11];
    uint64_t sent_end;  // by the program: one past the highest sum that it sent
};

// A packet's sum. Its head is that of the first packet, with count, flags and checksum of all that arrived, and in
// `sender` how many payloads were added: some are not when the children do not agree. Free when none has arrived, or
// when its epoch or number is of the past. One cache line: processors hand it to each other for every packet.
struct luwu_slot {
    struct luwu_head head;
    uint64_t arrived;  // children, a bit each
    uint32_t sent_at;  // once all have arrived: luwu_ticks, when its sum was last sent
    uint32_t lock;     // 1: a processor works on it
};

// The bias of a word (bpf/words.h): the sign bits of all values except the highest.
static inline uint64_t luwu_bias(int narrow) { return narrow ? 0x0000800080008000ULL : 0x0000000080000000ULL; }

// A sum of `added` biased words (bpf/words.h) as it is on the wire: each value as though it had been added alone.
static inline uint64_t luwu_unbiased(int narrow, uint64_t sum, uint32_t added) {
    sum -= added * luwu_bias(narrow);
    if (!narrow) return sum + ((sum & 0x80000000ULL) << 1);
    sum += (sum & 0x8000ULL) << 1;
    sum += (sum & 0x80000000ULL) << 1;
    return sum + ((sum & 0x800000000000ULL) << 1);
}

// The monotonic clock in steps of 1024 ns. 32 bits of it tell the age of what is younger than half an hour.
static inline uint32_t luwu_ticks(uint64_t nanoseconds) { return (uint32_t)(nanoseconds >> 10); }
static inline uint64_t luwu_nanoseconds(uint32_t ticks) { return (uint64_t)ticks << 10; }

// Path to a neighbour, from its last heartbeat. `interface_number` 0: not known.
struct luwu_path {
    uint8_t theirs[6];  // Ethernet addresses, in a frame's order
    uint8_t ours[6];
    uint32_t interface_number;
    uint64_t heard;  // number of that heartbeat
};

// The children behind one interface.
struct luwu_port {
    uint32_t children;
    uint16_t child[LUWU_XDP_MOST_CHILDREN];
};

// A port's copies of one packet are told apart by their order.
struct luwu_turn {
    uint32_t tag;
    uint32_t next;
};

// The checksum's weights as the program uses them on words of eight bytes. With x the word and T(k) the signed x >> 16k
// (or 32k), the sum of weight w(k) times value k over the word is the sum of T(k) * (w(k) - w(k - 1) * 2^16 (or 2^32)):
// one multiplication a value, and none of them must be cut out of the word. Every value but a word's highest has its
// sign bit flipped, so that it counts as value + 2^15 (2^31) without a sign; `less` takes that away again.
struct luwu_weights {
    uint64_t wide[LUWU_XDP_WORDS][2];
    uint64_t narrow[LUWU_XDP_WORDS][4];
    uint64_t less_wide[LUWU_XDP_WORDS + 1];  // by the number of words
    uint64_t less_narrow[LUWU_XDP_WORDS + 1];
    uint64_t head[9];
};
