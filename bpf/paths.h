// How neighbours are reached: as their heartbeats come. An Ethernet switch learns no other way.
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

static __always_inline __u16 ip_checksum(const struct iphdr* ip) {
    const __u16* words = (const void*)ip;
    __u32 sum = 0;
#pragma unroll
    for (__u32 i = 0; i < sizeof *ip / 2; ++i) sum += words[i];
    sum = (sum & 0xffff) + (sum >> 16);
    return ~((sum & 0xffff) + (sum >> 16));
}

// UDP's checksum is left out, which IPv4 allows: the packet has a better one.
static __always_inline void address_to(struct frame* frame, const struct luwu_path* path, __u32 peer) {
    if (peer >= LUWU_XDP_PEERS) return;
    __builtin_memcpy(frame->ethernet->h_dest, path->theirs, ETH_ALEN);
    __builtin_memcpy(frame->ethernet->h_source, path->ours, ETH_ALEN);
    frame->ip->saddr = job.own.address;
    frame->ip->daddr = job.peers[peer].address;
    frame->ip->tos = 0;
    frame->ip->id = 0;
    frame->ip->ttl = 64;
    frame->ip->check = 0;
    frame->ip->check = ip_checksum(frame->ip);
    frame->udp->source = job.own.port;
    frame->udp->dest = job.peers[peer].port;
    frame->udp->check = 0;
}
