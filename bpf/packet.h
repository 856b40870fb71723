// Finding a packet of the job in a frame. Everything else is the machine's other traffic.
#pragma once

#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "maps.h"

struct frame {
    struct ethhdr* ethernet;
    struct iphdr* ip;
    struct udphdr* udp;
    struct luwu_head* head;
};

// True if there is room for all of it.
static __always_inline int lay_out(struct xdp_md* context, struct frame* frame) {
    void* at = (void*)(long)context->data;
    frame->ethernet = at;
    frame->ip = at + sizeof *frame->ethernet;
    frame->udp = (void*)(frame->ip + 1);
    frame->head = (void*)(frame->udp + 1);
    return (void*)(frame->head + 1) <= (void*)(long)context->data_end;
}

// An IPv4 datagram without options that is whole, from anyone to the switch. IPv6, VLANs and fragments take the way
// through the kernel.
static __always_inline int is_for_switch(const struct frame* frame) {
    if (frame->ethernet->h_proto != bpf_htons(ETH_P_IP) || frame->ip->version != 4 || frame->ip->ihl != 5) return 0;
    if (frame->ip->protocol != IPPROTO_UDP || frame->ip->frag_off & bpf_htons(0x3fff)) return 0;
    return frame->ip->daddr == job.own.address && frame->udp->dest == job.own.port;
}

// A whole packet of this job, whose checksum is not verified yet. What is for the switch but is none is left to the
// controller, which says why: damaged heads, and runs of several datagrams, as offloading makes them.
static __always_inline int find_packet(struct xdp_md* context, struct frame* frame) {
    if (!lay_out(context, frame) || !is_for_switch(frame)) return 0;
    const struct luwu_head* head = frame->head;
    const __u32 datagram_bytes = sizeof *frame->udp + sizeof *head + head->bytes;
    if (head->magic != LUWU_MAGIC || head->version != LUWU_PROTOCOL || head->job != job.job) return 0;
    if (bpf_ntohs(frame->udp->len) != datagram_bytes) return 0;
    if (bpf_ntohs(frame->ip->tot_len) != sizeof *frame->ip + datagram_bytes) return 0;
    return head->kind == LUWU_HEARTBEAT || head->bytes <= job.payload_bytes;
}

static __always_inline int came_from(const struct frame* frame, __u32 peer) {
    if (peer >= LUWU_XDP_PEERS) return 0;
    return frame->ip->saddr == job.peers[peer].address && frame->udp->source == job.peers[peer].port;
}

// Sender of the frame; LUWU_XDP_PEERS: nobody that the job knows.
static __always_inline __u32 peer_of(const struct frame* frame) {
    const __u16 sender = frame->head->sender;
    __u32 peer = LUWU_XDP_PEERS;
    if (sender == LUWU_FROM_PARENT) peer = LUWU_XDP_PARENT;
    if (sender < job.children) peer = sender;
    return came_from(frame, peer) ? peer : LUWU_XDP_PEERS;
}
