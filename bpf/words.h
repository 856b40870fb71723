// Payloads as words of eight bytes: adding them up and computing their checksum in one go.
//
// A word holds two or four signed values. Flipping the sign bit of all but the highest adds 2^31 (2^15) to each and
// makes it a number without sign; the word as an integer of 64 bits is then exactly value(1) * 2^32 + value(0) + 2^31.
// Such biased words are summed by one addition each. What values carry into their neighbours is undone on the way out
// (luwu_unbiased): as long as a sum of values does not overflow, which their shared exponents see to, it is exact. The
// checksum is computed from the same biased words (luwu_weights).
#pragma once

#include "packet.h"

#define WORD_BYTES 8
#define RUN_WORDS 8  // handled without a jump between them

enum words_action {
    WORDS_VERIFY,    // compute the checksum alone
    WORDS_STORE,     // and begin a sum
    WORDS_ADD,       // and add to a sum
    WORDS_SUBTRACT,  // take out of the sum again
    WORDS_FINISH,    // make the packet the sum
};

struct words {
    const struct luwu_weights* weights;
    __u8* packet;
    const void* packet_end;
    __u64* sum;  // job.payload_bytes; none where an action needs none
    __u32 bytes;
    __u32 added;  // payloads in the sum
    __u8 form;
};

// Part of one biased word in the checksum.
static __always_inline __u64 weigh(int narrow, __u64 biased, const uint64_t* weights) {
    __s64 rest = biased;
    if (!narrow) return biased * weights[0] + (__u64)(rest >> 32) * weights[1];
    return biased * weights[0] + (__u64)(rest >> 16) * weights[1] + (__u64)(rest >> 32) * weights[2] +
           (__u64)(rest >> 48) * weights[3];
}

static __always_inline __u64 handle_word(enum words_action action, int narrow, __u64 word, __u64* sum,
                                         const uint64_t* weights) {
    const __u64 biased = word ^ luwu_bias(narrow);
    if (action == WORDS_STORE) *sum = biased;
    if (action == WORDS_ADD) *sum += biased;
    if (action == WORDS_SUBTRACT) {
        *sum -= biased;
        return 0;
    }
    return weigh(narrow, biased, weights);
}

// Keeps the compiler from working on several words at once, for which there are not enough registers.
static __always_inline void one_by_one(__u64* checksum) { asm volatile("" : "+r"(*checksum) : : "memory"); }

// A packet of full length, of which the verifier knows how many words it has.
static __always_inline __u64 full_words(enum words_action action, int narrow, const struct words* it) {
    __u8* packet = it->packet;
    __u64* sum = it->sum;
    const uint64_t* weights = narrow ? it->weights->narrow[0] : it->weights->wide[0];
    __u64 checksum = 0;
    if (packet + job.payload_bytes > (__u8*)it->packet_end) return 0;
    const __u32 runs = job.payload_bytes / (RUN_WORDS * WORD_BYTES);
    for (__u32 run = 0; run < LUWU_XDP_WORDS / RUN_WORDS; ++run) {
        if (run >= runs) break;
#pragma unroll
        for (__u32 i = 0; i < RUN_WORDS; ++i) {
            __u64* word = (__u64*)(packet + i * WORD_BYTES);
            if (action == WORDS_FINISH) {
                *word = luwu_unbiased(narrow, sum[i], it->added);
            } else {
                checksum += handle_word(action, narrow, *word, sum + i, weights + i * (narrow ? 4 : 2));
            }
            one_by_one(&checksum);
        }
        packet += RUN_WORDS * WORD_BYTES;
        sum += RUN_WORDS;
        weights += RUN_WORDS * (narrow ? 4 : 2);
    }
    return checksum;
}

// The last bytes, fewer than a word, with zeros behind them.
static __always_inline __u64 load_rest(const __u8* from, const void* end, __u32 bytes) {
    __u64 word = 0;
#pragma unroll
    for (__u32 i = 0; i < WORD_BYTES - 1; ++i) {
        if (i < bytes && (void*)(from + i + 1) <= end) word |= (__u64)from[i] << (8 * i);
    }
    return word;
}

static __always_inline void store_rest(__u8* to, const void* end, __u32 bytes, __u64 word) {
#pragma unroll
    for (__u32 i = 0; i < WORD_BYTES - 1; ++i) {
        if (i < bytes && (void*)(to + i + 1) <= end) to[i] = word >> (8 * i);
    }
}

// The verifier follows each way out of a loop on its own, unless what it learnt there is used no more. So loops compare
// with a copy, which it does not connect with the original.
static __always_inline __u64 forget(__u64 value) {
    asm volatile("%0 &= 0x3fff" : "+r"(value));
    return value;
}

// Rest of a payload behind its whole words.
static __always_inline __u64 last_word(enum words_action action, int narrow, const struct words* it, __u32 most_words) {
    const __u64 bytes = forget(it->bytes);
    const __u64 at = bytes / WORD_BYTES;
    const __u32 rest = bytes % WORD_BYTES;
    if (rest == 0 || at >= most_words || at >= LUWU_XDP_WORDS) return 0;
    __u8* from = it->packet + at * WORD_BYTES;
    __u64* sum = it->sum + at;
    if (action == WORDS_FINISH) {
        store_rest(from, it->packet_end, rest, luwu_unbiased(narrow, *sum, it->added));
        return 0;
    }
    return handle_word(action, narrow, load_rest(from, it->packet_end, rest), sum,
                       narrow ? it->weights->narrow[at] : it->weights->wide[at]);
}

// A packet of any length: the last of a message.
static __always_inline __u64 any_words(enum words_action action, int narrow, const struct words* it, __u32 most_words) {
    const __u64 words = forget(it->bytes) / WORD_BYTES;
    __u64 checksum = 0;
    for (__u32 i = 0; i < LUWU_XDP_WORDS; ++i) {
        if (i >= words || i >= most_words) break;
        __u64* word = (__u64*)(it->packet + i * WORD_BYTES);
        __u64* sum = it->sum + i;
        if ((void*)(word + 1) > it->packet_end) break;
        if (action == WORDS_FINISH) {
            *word = luwu_unbiased(narrow, *sum, it->added);
        } else {
            checksum += handle_word(action, narrow, *word, sum, narrow ? it->weights->narrow[i] : it->weights->wide[i]);
        }
    }
    return checksum + last_word(action, narrow, it, most_words);
}

// A heartbeat may be longer than the job's packets; nothing is done with it but to verify it.
static __always_inline __u32 most_words(enum words_action action) {
    const __u32 bytes = job.payload_bytes;
    if (action == WORDS_VERIFY && bytes < sizeof(struct luwu_heartbeat))
        return sizeof(struct luwu_heartbeat) / WORD_BYTES;
    return bytes / WORD_BYTES;
}

static __always_inline __u64 all_words(enum words_action action, int narrow, const struct words* it) {
    const __u32 words = (it->bytes + WORD_BYTES - 1) / WORD_BYTES;
    const __u64 less = narrow ? it->weights->less_narrow[words] : it->weights->less_wide[words];
    if (it->bytes == job.payload_bytes) return full_words(action, narrow, it) - less;
    return any_words(action, narrow, it, most_words(action)) - less;
}

static __always_inline __u64 act(enum words_action action, const struct words* it) {
    return it->form == LUWU_INT16 ? all_words(action, 1, it) : all_words(action, 0, it);
}

static __always_inline const struct luwu_weights* the_weights(void) {
    const __u32 zero = 0;
    return bpf_map_lookup_elem(&weights, &zero);
}

static __always_inline int words_of_packet(struct xdp_md* context, struct words* it) {
    struct frame frame;
    if (!lay_out(context, &frame)) return 0;
    it->weights = the_weights();
    it->packet = (void*)(frame.head + 1);
    it->packet_end = (void*)(long)context->data_end;
    it->bytes = frame.head->bytes;
    it->form = frame.head->form;
    return it->weights != 0 && it->bytes <= LUWU_MOST_PAYLOAD;
}

// The packet's words and those of the slot for its number.
static __always_inline int words_of_slot(struct xdp_md* context, __u32 number, struct words* it) {
    it->sum = bpf_map_lookup_elem(&payloads, &number);
    return it->sum != 0 && words_of_packet(context, it) && it->bytes <= job.payload_bytes;
}

// The actions are functions of their own to the verifier: it looks at each once, however often it is called. They
// return the payload's checksum, where they read it.

__noinline __u64 verify_payload(struct xdp_md* context) {
    struct words it = {};
    return words_of_packet(context, &it) ? act(WORDS_VERIFY, &it) : 0;
}

__noinline __u64 store_payload(struct xdp_md* context, __u32 number) {
    struct words it = {};
    return words_of_slot(context, number, &it) ? act(WORDS_STORE, &it) : 0;
}

__noinline __u64 add_payload(struct xdp_md* context, __u32 number) {
    struct words it = {};
    return words_of_slot(context, number, &it) ? act(WORDS_ADD, &it) : 0;
}

__noinline __u64 subtract_payload(struct xdp_md* context, __u32 number) {
    struct words it = {};
    return words_of_slot(context, number, &it) ? act(WORDS_SUBTRACT, &it) : 0;
}

__noinline __u64 finish_payload(struct xdp_md* context, __u32 number, __u32 added) {
    struct words it = {.added = added};
    return words_of_slot(context, number, &it) ? act(WORDS_FINISH, &it) : 0;
}
