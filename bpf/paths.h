// Paths to neighbours, learned from their heartbeats. An Ethernet switch learns no other way.
#pragma once

#include "seal.h"

static __always_inline struct luwu_path* path_of(__u32 peer) { return bpf_map_lookup_elem(&paths, &peer); }

// A heartbeat of the job goes on to the controller in any case; one that is newer than the last shows the way back.
static __always_inline void learn_path(struct xdp_md* context, struct frame* frame) {
    const __u32 peer = peer_of(frame);
    struct luwu_path* path = path_of(peer);
    if (!path || frame->head->sequence <= path->heard || !is_sealed(context, frame)) return;
    path->heard = frame->head->sequence;
    __builtin_memcpy(path->theirs, frame->ethernet->h_source, ETH_ALEN);
    __builtin_memcpy(path->ours, frame->ethernet->h_dest, ETH_ALEN);
    path->interface_number = context->ingress_ifindex;
}

#define OUR_TTL 64

static __always_inline __u32 both_halves(__u32 word) { return (word & 0xffff) + (word >> 16); }

// Checksum of a header as address_to() makes it: words that were just written are not read again, which takes longer.
static __always_inline __u16 ip_checksum(const struct iphdr* ip, __u32 from, __u32 to) {
    const __u32 version_and_length = bpf_htons(0x4500);
    const __u32 ttl_and_protocol = bpf_htons(OUR_TTL << 8 | IPPROTO_UDP);
    const __u32 sum =
        version_and_length + ip->tot_len + ip->frag_off + ttl_and_protocol + both_halves(from) + both_halves(to);
    return ~both_halves(both_halves(sum));
}

// UDP's checksum is left out, which IPv4 allows: the packet has a better one.
static __always_inline void address_to(struct frame* frame, const struct luwu_path* path, __u32 peer) {
    if (peer >= LUWU_XDP_PEERS) return;
    const __u32 from = job.own.address;
    const __u32 to = job.peers[peer].address;
    // Both addresses, four bytes at a time. A frame's begin is aligned so far.
    __builtin_memcpy(__builtin_assume_aligned(frame->ethernet, 4), __builtin_assume_aligned(path, 4), 2 * ETH_ALEN);
    frame->ip->saddr = from;
    frame->ip->daddr = to;
    frame->ip->tos = 0;
    frame->ip->id = 0;
    frame->ip->ttl = OUR_TTL;
    frame->ip->check = ip_checksum(frame->ip, from, to);
    frame->udp->source = job.own.port;
    frame->udp->dest = job.peers[peer].port;
    frame->udp->check = 0;
}
