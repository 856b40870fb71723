// A LuWu switch inside the kernel: adds up gradients and copies parameters before packets reach a socket.
//
// It takes what comes in order, which is nearly all, and passes the rest on: heartbeats, requests and exponents, and
// whatever is damaged or out of place go to the socket of the controller (switch/udp_switch.h), which does with them
// what a switch in user space does. docs/protocol.md has the protocol, docs/decisions/0009-xdp.md the reasons.
#include "broadcast.h"
#include "gradients.h"

static __always_inline int take_packet(struct xdp_md* context, struct frame* frame) {
    switch (frame->head->kind) {
        case LUWU_GRADIENTS:
            return take_gradients(context, frame);
        case LUWU_PARAMETERS:
        case LUWU_AGREED:
            return broadcast(context, frame);
        case LUWU_HEARTBEAT:
            learn_path(context, frame);
            return XDP_PASS;
        default:
            return XDP_PASS;
    }
}

SEC("xdp")
int luwu_switch(struct xdp_md* context) {
    struct frame frame;
    if (!find_packet(context, &frame)) return XDP_PASS;
    return take_packet(context, &frame);
}

SEC("xdp/devmap")
int luwu_copy(struct xdp_md* context) { return address_copy(context); }

char luwu_license[] SEC("license") = "Apache-2.0";
