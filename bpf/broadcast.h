// Parameters, and agreed exponents, on their way down: one copy for each child. The kernel copies a frame to every
// entry of a device map; luwu_copy, which runs on each copy as it leaves, addresses it.
#pragma once

#include "paths.h"

// Copies leave a port in the order of its children, so counting those of one packet tells whose each is. What tells
// packets apart lies in two fields that luwu_copy overwrites.
static __always_inline void set_tag(struct frame* frame, __u32 tag) {
    frame->ip->id = tag;
    frame->udp->check = tag >> 16;
}

static __always_inline __u32 tag_of(const struct frame* frame) {
    return frame->ip->id | (__u32)frame->udp->check << 16;
}

static __always_inline int broadcast(struct xdp_md* context, struct frame* frame) {
    const struct luwu_state* now = the_state();
    if (!now || !now->broadcasts || frame->head->epoch != now->epoch) return XDP_PASS;
    if (peer_of(frame) != LUWU_XDP_PARENT || !is_sealed(context, frame)) return XDP_PASS;
    const __u32 key = LUWU_XDP_PACKETS_IN;
    __u64* packets = bpf_map_lookup_elem(&counts, &key);
    if (!packets) return XDP_PASS;
    set_tag(frame, ++*packets);
    count(LUWU_XDP_PACKETS_OUT, job.children);
    return bpf_redirect_map(&copies, 0, BPF_F_BROADCAST);
}

static __always_inline __u32 child_of_copy(const struct luwu_port* port, __u32 number, __u32 tag) {
    struct luwu_turn* turn = bpf_map_lookup_elem(&turns, &number);
    if (!turn) return LUWU_XDP_PEERS;
    const __u32 place = turn->tag == tag ? turn->next : 0;
    turn->tag = tag;
    turn->next = place + 1;
    if (place >= port->children || place >= LUWU_XDP_MOST_CHILDREN) return LUWU_XDP_PEERS;
    return port->child[place];
}

static __always_inline int address_copy(struct xdp_md* context) {
    struct frame frame;
    const __u32 leaves_by = context->egress_ifindex;
    const __u32* number = bpf_map_lookup_elem(&port_numbers, &leaves_by);
    const struct luwu_port* port = number ? bpf_map_lookup_elem(&ports, number) : 0;
    if (!port || !lay_out(context, &frame)) return XDP_DROP;
    const __u32 child = port->children == 1 ? port->child[0] : child_of_copy(port, *number, tag_of(&frame));
    const struct luwu_path* path = path_of(child);
    if (!path) return XDP_DROP;
    address_to(&frame, path, child);
    return XDP_PASS;
}
