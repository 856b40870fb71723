// The checksum of a packet's head, and of packets that are not added up.
#pragma once

#include "words.h"

static __always_inline __u64 weigh_head_word(const struct luwu_weights* weights, __u32 number, __u32 word) {
    return (__u64)(__s64)(__s32)word * weights->head[number];
}

// The sum that docs/protocol.md defines: without sender, count and checksum, times the contributions.
static __always_inline __u64 head_checksum(const struct luwu_weights* weights, const struct luwu_head* head) {
    const __u32* words = (const void*)head;
    __u64 sum = 0;
#pragma unroll
    for (__u32 i = 0; i < 4; ++i) sum += weigh_head_word(weights, i, words[i]);  // magic to job
    sum += weigh_head_word(weights, 4, words[5]);                                // bytes, form, flags
#pragma unroll
    for (__u32 i = 0; i < 4; ++i) sum += weigh_head_word(weights, 5 + i, words[6 + i]);  // sequence, block, index
    return sum * (head->count ? head->count : 1);
}

static __always_inline int is_sealed(struct xdp_md* context, const struct frame* frame) {
    const struct luwu_weights* weights = the_weights();
    if (!weights) return 0;
    return head_checksum(weights, frame->head) + verify_payload(context) == frame->head->checksum;
}
