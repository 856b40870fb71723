// For benchmarks/xdp_packet.py: the switch's own functions on one packet again and again, which each run makes a new
// one, as BPF_PROG_TEST_RUN does not.
#include "broadcast.h"
#include "gradients.h"

__u64 turn = 0;

// The next child's packet; after the last child's that of the next number, which has another checksum.
static __always_inline int next_packet(struct xdp_md* context, struct frame* frame, __u32 children) {
    struct luwu_state* now = the_state();
    const struct luwu_weights* weights = the_weights();
    if (!now || !weights || !lay_out(context, frame)) return 0;
    frame->head->sender = turn++ % children;
    if (frame->head->sender != 0) return 1;
    ++frame->head->sequence;
    frame->head->checksum += weights->head[5] * frame->head->count;
    now->base = frame->head->sequence;
    return 1;
}

// Baseline: the time that the other programs take besides the work that they measure.
SEC("xdp")
int measure_nothing(struct xdp_md* context) {
    struct frame frame;
    next_packet(context, &frame, job.children - 1);
    return XDP_DROP;
}

// All children but one: no sum is ever complete.
SEC("xdp")
int measure_aggregate(struct xdp_md* context) {
    struct frame frame;
    if (!next_packet(context, &frame, job.children - 1) || !find_packet(context, &frame)) return XDP_ABORTED;
    return take_gradients(context, &frame);
}

// For a job of one child: each packet is added, and becomes the sum.
SEC("xdp")
int measure_complete(struct xdp_md* context) {
    struct frame frame;
    if (!next_packet(context, &frame, 1)) return XDP_ABORTED;
    frame.ip->saddr = job.peers[0].address;
    frame.ip->daddr = job.own.address;
    frame.udp->source = job.peers[0].port;
    frame.udp->dest = job.own.port;
    if (!find_packet(context, &frame)) return XDP_ABORTED;
    return take_gradients(context, &frame);
}

// Without the copying, which the kernel does afterwards.
SEC("xdp")
int measure_broadcast(struct xdp_md* context) {
    struct frame frame;
    if (!find_packet(context, &frame)) return XDP_ABORTED;
    return broadcast(context, &frame);
}

char luwu_license[] SEC("license") = "Apache-2.0";
