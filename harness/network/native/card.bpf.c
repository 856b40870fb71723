// Between two hosts: frames of one interface leave by the other, whose number differs in the last bit.
//
// What a process sends is a socket buffer, and a veth with an XDP program at its end has to copy it into a page first.
// Here that is done on the way, so that the next end is given frames as a network card gives them: in a page of their
// own, with room in front.
#include <linux/bpf.h>  // first

// clang-format off
#include <bpf/bpf_helpers.h>
// clang-format on

SEC("xdp")
int pass_on(struct xdp_md* context) { return bpf_redirect(context->ingress_ifindex ^ 1, 0); }

char card_license[] SEC("license") = "Apache-2.0";
