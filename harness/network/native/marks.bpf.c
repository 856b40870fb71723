// This program marks packets as a queue does that marks instead of losing them (RFC 3168). It runs before a link's
// limit of the same rate, follows the queue there from what has passed, and marks frames that come while more than 64
// wait. It has a section for each rate, in Mb/s. harness/network/links.py attaches it.
#include <linux/bpf.h>  // first

// clang-format off
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
// clang-format on

#define FRAME_BYTES 1514
#define FRAMES 64

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} empty_at SEC(".maps");

static int pass(struct __sk_buff* frame, __u64 nanoseconds_a_byte) {
    const __u32 key = 0;
    const __u64 now = bpf_ktime_get_ns();
    __u64* empty = bpf_map_lookup_elem(&empty_at, &key);
    if (!empty) return TC_ACT_OK;
    if (*empty < now) *empty = now;
    if (*empty - now > FRAMES * FRAME_BYTES * nanoseconds_a_byte) bpf_skb_ecn_set_ce(frame);
    *empty += frame->wire_len * nanoseconds_a_byte;
    return TC_ACT_OK;
}

SEC("tc_100")
int at_100(struct __sk_buff* frame) { return pass(frame, 80); }

SEC("tc_500")
int at_500(struct __sk_buff* frame) { return pass(frame, 16); }

SEC("tc_1000")
int at_1000(struct __sk_buff* frame) { return pass(frame, 8); }

char marks_license[] SEC("license") = "Apache-2.0";
