#include "switch/xdp_job.h"

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "fabric/core/address.h"
#include "kernels/weighted_sum.h"
#include "store/error.h"

#if LUWU_HAVE_XDP
#include <bpf/libbpf.h>
#endif

namespace luwu::switching {

namespace {

constexpr std::uint32_t kMostInterfaces = 1'000'000;  // four bytes each

luwu_peer peer_of(const fabric::Address& address) {
    luwu_peer peer{};
    std::memcpy(&peer.address, address.value.sin6_addr.s6_addr + 12, sizeof peer.address);
    peer.port = address.value.sin6_port;
    return peer;
}

}  // namespace

luwu_job xdp_job(const fabric::Wiring& wiring, const XdpPlace& place) {
    luwu_job job{};
    const std::size_t children = place.children.size();
    job.job = wiring.job;
    job.all_children = ~std::uint64_t{0} >> (LUWU_XDP_MOST_CHILDREN - children);
    job.own = peer_of(place.own);
    job.window = wiring.window[LUWU_STREAM_GRADIENTS];
    job.slots_mask = std::bit_ceil(job.window) - 1;
    job.payload_bytes = wiring.payload_bytes;
    job.children = static_cast<std::uint16_t>(children);
    job.child = place.child;
    for (std::size_t i = 0; i < children; ++i) job.peers[i] = peer_of(place.children[i]);
    job.peers[LUWU_XDP_PARENT] = peer_of(place.parent);
    return job;
}

// The form of luwu_weights. A weight of 0 stands before a word's first.
std::unique_ptr<luwu_weights> xdp_weights(std::uint64_t key) {
    constexpr std::size_t kHead = 16;
    const kernels::Weights drawn(key, kHead + 4 * LUWU_XDP_WORDS);
    auto made = std::make_unique<luwu_weights>();
    for (std::size_t i = 0; i < std::size(made->head); ++i) made->head[i] = drawn.data()[i];
    for (std::size_t word = 0; word < LUWU_XDP_WORDS; ++word) {
        std::uint64_t biased_wide = 0;
        std::uint64_t biased_narrow = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const std::uint64_t weight = drawn.data()[kHead + 4 * word + i];
            const std::uint64_t before = i == 0 ? 0 : drawn.data()[kHead + 4 * word + i - 1];
            made->narrow[word][i] = weight - (before << 16U);
            if (i < 3) biased_narrow += weight << 15U;
        }
        for (std::size_t i = 0; i < 2; ++i) {
            const std::uint64_t weight = drawn.data()[kHead + 2 * word + i];
            const std::uint64_t before = i == 0 ? 0 : drawn.data()[kHead + 2 * word];
            made->wide[word][i] = weight - (before << 32U);
            if (i < 1) biased_wide += weight << 31U;
        }
        made->less_wide[word + 1] = made->less_wide[word] + biased_wide;
        made->less_narrow[word + 1] = made->less_narrow[word] + biased_narrow;
    }
    return made;
}

std::vector<std::byte> xdp_frame(const luwu_peer& from, const luwu_peer& to, std::span<const std::byte> datagram) {
    ethhdr ethernet{};
    ethernet.h_proto = htons(ETH_P_IP);
    udphdr udp{};
    udp.source = from.port;
    udp.dest = to.port;
    udp.len = htons(static_cast<std::uint16_t>(sizeof udp + datagram.size()));
    iphdr ip{};
    ip.version = 4;
    ip.ihl = 5;
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.tot_len = htons(static_cast<std::uint16_t>(sizeof ip + sizeof udp + datagram.size()));
    ip.saddr = from.address;
    ip.daddr = to.address;
    std::vector<std::byte> frame(sizeof ethernet + sizeof ip + sizeof udp + datagram.size());
    std::memcpy(frame.data(), &ethernet, sizeof ethernet);
    std::memcpy(frame.data() + sizeof ethernet, &ip, sizeof ip);
    std::memcpy(frame.data() + sizeof ethernet + sizeof ip, &udp, sizeof udp);
    std::copy(datagram.begin(), datagram.end(), frame.end() - static_cast<std::ptrdiff_t>(datagram.size()));
    return frame;
}

#if LUWU_HAVE_XDP
void prepare_xdp(bpf_object* object, const luwu_job& job, std::uint32_t interfaces_end) {
    const auto map = [object](const char* name) { return bpf_object__find_map_by_name(object, name); };
    for (const char* name : {"slots", "payloads"}) bpf_map__set_max_entries(map(name), job.slots_mask + 1);
    bpf_map__set_value_size(map("payloads"), job.payload_bytes);
    bpf_map__set_max_entries(map("copies"), job.children);
    bpf_map__set_max_entries(map("port_numbers"), interfaces_end);
    if (bpf_program* const copier = bpf_object__find_program_by_name(object, "luwu_copy"); copier != nullptr) {
        bpf_program__set_expected_attach_type(copier, BPF_XDP_DEVMAP);
    }
    std::size_t bytes = 0;
    auto* constants = static_cast<std::byte*>(const_cast<void*>(bpf_map__initial_value(map(".rodata"), &bytes)));
    if (constants == nullptr || bytes < sizeof job) throw Error(ErrorKind::io, "the XDP switch was built wrongly");
    std::memcpy(constants, &job, sizeof job);
}
#endif

std::string xdp_unfit(const fabric::Wiring& wiring, const XdpPlace& place) {
    if (place.children.size() > LUWU_XDP_MOST_CHILDREN) {
        return "more than " + std::to_string(LUWU_XDP_MOST_CHILDREN) + " children";
    }
    if (wiring.form == LUWU_FLOAT32) return "gradients of form float32: the kernel adds integers only";
    if (place.interfaces_end > kMostInterfaces) return "an interface whose number is above a million";
    const auto is_other = [](const fabric::Address& address) { return !is_ipv4(address); };
    if (is_other(place.own) || is_other(place.parent) ||
        std::any_of(place.children.begin(), place.children.end(), is_other)) {
        return "a neighbour over IPv6";
    }
    return "";
}

}  // namespace luwu::switching
