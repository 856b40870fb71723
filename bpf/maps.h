// The maps of the switch. The controller sets their sizes before it loads the program, and sees those with
// BPF_F_MMAPABLE as memory of its own.
#pragma once

#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>

#include "switch/xdp_layout.h"

const volatile struct luwu_job job = {};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct luwu_state);
} state SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct luwu_slot);
} slots SEC(".maps");

// The sums: payload_bytes for each slot, as biased words (bpf/words.h).
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, LUWU_MOST_PAYLOAD);
} payloads SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct luwu_weights);
} weights SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, LUWU_XDP_PEERS);
    __type(key, __u32);
    __type(value, struct luwu_path);
} paths SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, LUWU_XDP_COUNTS);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

// The interface of every child, and the program that addresses its copies.
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, LUWU_XDP_MOST_CHILDREN);
    __type(key, __u32);
    __type(value, struct bpf_devmap_val);
} copies SEC(".maps");

// Port of an interface. Looked up for every copy, where a hash would take longer than all else.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);  // interface
    __type(value, __u32);
} port_numbers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, LUWU_XDP_MOST_CHILDREN);
    __type(key, __u32);
    __type(value, struct luwu_port);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, LUWU_XDP_MOST_CHILDREN);
    __type(key, __u32);  // of the port
    __type(value, struct luwu_turn);
} turns SEC(".maps");

static __always_inline void count(enum luwu_xdp_count what, __u64 many) {
    const __u32 key = what;
    __u64* entry = bpf_map_lookup_elem(&counts, &key);
    if (entry) *entry += many;
}

static __always_inline struct luwu_state* the_state(void) {
    const __u32 zero = 0;
    return bpf_map_lookup_elem(&state, &zero);
}
