// Sums of gradients: one slot for each number of the stream's window, under a lock of its own, because packets of one
// slot arrive on several processors at once.
#pragma once

#include "seal.h"

#define MOST_TRIES 4096

enum slot_verdict {
    SLOT_ADDED,
    SLOT_COMPLETED,  // the packet is the sum now
    SLOT_AGAIN,      // it was in already, and the sum was sent: the packet is the sum now
    SLOT_DUPLICATE,  // it was in already, or is of the past
    SLOT_NOT_OURS,   // for the controller: outside of the window, or its checksum is wrong
    SLOT_NOTE,       // for the controller: a sum is to be sent that this packet cannot become
};

struct slot_place {
    struct xdp_md* context;
    struct luwu_slot* slot;
    struct luwu_head* head;  // of the packet
    __u64 head_checksum;
    __u32 number;  // of the slot
};

// Another processor has it for a quarter of a microsecond; longer only where the machine under it has stopped. Not a
// bpf_spin_lock: the verifier allows too little with one held, and the controller's memory must not hold one.
static __always_inline int lock_slot(struct luwu_slot* slot) {
    for (__u32 i = 0; i < MOST_TRIES; ++i) {
        if (__sync_lock_test_and_set(&slot->lock, 1) == 0) return 1;
    }
    return 0;
}

static __always_inline void unlock_slot(struct luwu_slot* slot) { __sync_lock_test_and_set(&slot->lock, 0); }

static __always_inline int is_of(const struct luwu_slot* slot, const struct luwu_head* head) {
    return slot->arrived != 0 && slot->head.epoch == head->epoch && slot->head.sequence == head->sequence;
}

static __always_inline int is_past(const struct luwu_slot* slot, const struct luwu_head* head) {
    if (slot->arrived == 0 || slot->head.epoch < head->epoch) return 0;
    return slot->head.epoch > head->epoch || slot->head.sequence > head->sequence;
}

static __always_inline int agrees(const struct luwu_slot* slot, const struct luwu_head* head) {
    return slot->head.block == head->block && slot->head.index == head->index && slot->head.bytes == head->bytes &&
           slot->head.form == head->form;
}

// The controller reads slots without their locks. It looks at the number first, so none has arrived before that
// changes.
static __always_inline void set_arrived(struct luwu_slot* slot, __u64 arrived) {
    barrier();
    *(volatile __u64*)&slot->arrived = arrived;
    barrier();
}

// The first packet of a slot: its payload is the sum so far.
static __always_inline int begin_sum(const struct slot_place* at) {
    struct luwu_slot* slot = at->slot;
    set_arrived(slot, 0);
    if (at->head_checksum + store_payload(at->context, at->number) != at->head->checksum) return 0;
    slot->head = *at->head;
    slot->head.sender = 1;
    return 1;
}

static __always_inline int add_to_sum(const struct slot_place* at) {
    const struct luwu_head* head = at->head;
    struct luwu_slot* slot = at->slot;
    if (agrees(slot, head)) {
        if (at->head_checksum + add_payload(at->context, at->number) != head->checksum) {
            subtract_payload(at->context, at->number);
            return 0;
        }
        ++slot->head.sender;
    } else {
        if (at->head_checksum + verify_payload(at->context) != head->checksum) return 0;
        slot->head.flags |= LUWU_CONFLICT;
    }
    slot->head.flags |= head->flags;
    slot->head.count += head->count;
    slot->head.checksum += head->checksum;
    return 1;
}

// The packet becomes the sum, whose form and length it has.
static __always_inline enum slot_verdict become_sum(const struct slot_place* at, enum slot_verdict verdict) {
    finish_payload(at->context, at->number, at->slot->head.sender);
    *at->head = at->slot->head;
    at->head->sender = job.child;
    return verdict;
}

static __always_inline enum slot_verdict answer_duplicate(const struct slot_place* at) {
    const struct luwu_slot* slot = at->slot;
    if (slot->arrived != job.all_children) return SLOT_DUPLICATE;
    if (at->head_checksum + verify_payload(at->context) != at->head->checksum) return SLOT_NOT_OURS;
    if (slot->head.flags & LUWU_CONFLICT || !agrees(slot, at->head)) return SLOT_NOTE;
    return become_sum(at, SLOT_AGAIN);
}

// With the lock held.
static __always_inline enum slot_verdict add_packet(const struct slot_place* at) {
    struct luwu_slot* slot = at->slot;
    const __u64 child = 1ULL << (at->head->sender & (LUWU_XDP_MOST_CHILDREN - 1));
    __u64 arrived = child;
    if (is_past(slot, at->head)) return SLOT_DUPLICATE;
    if (is_of(slot, at->head)) {
        if (slot->arrived & child) return answer_duplicate(at);
        if (!add_to_sum(at)) return SLOT_NOT_OURS;
        arrived |= slot->arrived;
    } else if (!begin_sum(at)) {
        return SLOT_NOT_OURS;
    }
    enum slot_verdict verdict = SLOT_ADDED;
    if (arrived == job.all_children) {
        slot->sent_at = luwu_ticks(bpf_ktime_get_ns());
        // The controller seals the sum where the children do not agree.
        verdict = slot->head.flags & LUWU_CONFLICT ? SLOT_NOTE : become_sum(at, SLOT_COMPLETED);
    }
    set_arrived(slot, arrived);
    return verdict;
}
