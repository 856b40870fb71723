// Gradients on their way up: what a packet means for its slot, and where it goes then.
#pragma once

#include "paths.h"
#include "slots.h"

// The controller reads the sum from its slot, and seals it where it must.
static __always_inline int leave_note(struct frame* frame) {
    frame->head->sender = LUWU_TO_CONTROLLER;
    frame->udp->check = 0;
    return XDP_PASS;
}

static __always_inline int send_sum(struct xdp_md* context, struct frame* frame, enum slot_verdict verdict) {
    const struct luwu_path* path = path_of(LUWU_XDP_PARENT);
    if (!path || path->interface_number == 0) return leave_note(frame);
    address_to(frame, path, LUWU_XDP_PARENT);
    if (verdict == SLOT_COMPLETED) {
        count(LUWU_XDP_SUMS_SENT, 1);
    } else {
        count(LUWU_XDP_DUPLICATES, 1);
        count(LUWU_XDP_SUMS_AGAIN, 1);
    }
    count(LUWU_XDP_PACKETS_IN, 1);
    count(LUWU_XDP_PACKETS_OUT, 1);
    if (path->interface_number == context->ingress_ifindex) return XDP_TX;
    return bpf_redirect(path->interface_number, 0);
}

static __always_inline int take_verdict(struct xdp_md* context, struct frame* frame, enum slot_verdict verdict) {
    switch (verdict) {
        case SLOT_COMPLETED:
        case SLOT_AGAIN:
            return send_sum(context, frame, verdict);
        case SLOT_NOTE:
            return leave_note(frame);
        case SLOT_NOT_OURS:
            return XDP_PASS;
        case SLOT_DUPLICATE:
            count(LUWU_XDP_DUPLICATES, 1);
        case SLOT_ADDED:
            break;
    }
    count(LUWU_XDP_PACKETS_IN, 1);
    return XDP_DROP;
}

static __always_inline int take_gradients(struct xdp_md* context, struct frame* frame) {
    struct luwu_state* now = the_state();
    struct luwu_head* head = frame->head;
    const struct luwu_weights* weights = the_weights();
    if (!now || !weights || !now->ready || head->epoch != now->epoch) return XDP_PASS;
    if (peer_of(frame) >= LUWU_XDP_MOST_CHILDREN || head->sequence - now->base >= job.window) return XDP_PASS;
    const __u64 sequence = head->sequence;
    struct slot_place at = {.context = context, .head = head, .number = sequence & job.slots_mask};
    at.slot = bpf_map_lookup_elem(&slots, &at.number);
    if (!at.slot) return XDP_PASS;
    at.head_checksum = head_checksum(weights, head);
    if (!lock_slot(at.slot)) return XDP_PASS;
    const enum slot_verdict verdict = add_packet(&at);
    unlock_slot(at.slot);
    if (verdict == SLOT_COMPLETED && sequence >= now->sent_end) now->sent_end = sequence + 1;
    return take_verdict(context, frame, verdict);
}
