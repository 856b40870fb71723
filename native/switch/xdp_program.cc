#include "switch/xdp_program.h"

#include <algorithm>
#include <bit>

#include "fabric/address.h"
#include "fabric/packet.h"
#include "store/error.h"

#if LUWU_HAVE_XDP

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "switch/xdp_support.h"

// The compiled program, as bytes of this library.
asm(".pushsection .rodata\n"
    ".balign 8\n"
    "luwu_xdp_object_begin: .incbin \"" LUWU_XDP_OBJECT
    "\"\n"
    "luwu_xdp_object_end:\n"
    ".popsection\n");
extern "C" {
extern const std::byte luwu_xdp_object_begin[];
extern const std::byte luwu_xdp_object_end[];
}

namespace luwu::fabric {

namespace {

luwu_peer peer_of(const Address& address) {
    luwu_peer peer{};
    std::memcpy(&peer.address, address.value.sin6_addr.s6_addr + 12, sizeof peer.address);
    peer.port = address.value.sin6_port;
    return peer;
}

luwu_job job_of(const Wiring& wiring, const XdpPlace& place) {
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

// As luwu_weights says. A weight of 0 stands before a word's first.
std::unique_ptr<luwu_weights> weights_of(std::uint64_t key) {
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

}  // namespace

std::string xdp_missing() { return ""; }

struct XdpProgram::Parts {
    luwu_job job{};
    std::unique_ptr<bpf_object, decltype(&bpf_object__close)> object{nullptr, &bpf_object__close};
    int program = -1;
    int copier = -1;
    MappedMap state;
    MappedMap slots;
    MappedMap payloads;
    MappedMap paths;
    std::array<std::uint32_t, LUWU_XDP_MOST_CHILDREN> followed{};  // interfaces that copies go to

    [[nodiscard]] bpf_map* map(const char* name) const { return bpf_object__find_map_by_name(object.get(), name); }
    [[nodiscard]] int map_descriptor(const char* name) const { return bpf_map__fd(map(name)); }
    void size_maps();
    void load();
    void follow(std::uint32_t child);
    void list_ports();
};

void XdpProgram::Parts::size_maps() {
    for (const char* name : {"slots", "payloads"}) bpf_map__set_max_entries(map(name), job.slots_mask + 1);
    bpf_map__set_value_size(map("payloads"), job.payload_bytes);
    bpf_map__set_max_entries(map("copies"), job.children);
    bpf_program__set_expected_attach_type(bpf_object__find_program_by_name(object.get(), "luwu_copy"), BPF_XDP_DEVMAP);
    std::size_t bytes = 0;
    auto* constants = static_cast<std::byte*>(const_cast<void*>(bpf_map__initial_value(map(".rodata"), &bytes)));
    if (constants == nullptr || bytes < sizeof job) throw Error(ErrorKind::io, "the XDP switch was built wrongly");
    std::memcpy(constants, &job, sizeof job);
}

void XdpProgram::Parts::load() {
    const std::lock_guard hold(libbpf_turn());
    const LibbpfMessages messages;
    const auto bytes = static_cast<std::size_t>(luwu_xdp_object_end - luwu_xdp_object_begin);
    object.reset(bpf_object__open_mem(luwu_xdp_object_begin, bytes, nullptr));
    if (object == nullptr) throw xdp_error("open the XDP switch", errno, messages.text());
    size_maps();
    if (const int failed = bpf_object__load(object.get()); failed != 0) {
        throw xdp_error("load the XDP switch into the kernel", -failed, messages.text());
    }
    program = bpf_program__fd(bpf_object__find_program_by_name(object.get(), "luwu_switch"));
    copier = bpf_program__fd(bpf_object__find_program_by_name(object.get(), "luwu_copy"));
}

XdpProgram::XdpProgram(const Wiring& wiring, const XdpPlace& place) : parts_(std::make_unique<Parts>()) {
    parts_->job = job_of(wiring, place);
    parts_->load();
    const std::size_t slots = std::size_t{parts_->job.slots_mask} + 1;
    parts_->state = MappedMap(parts_->map_descriptor("state"), sizeof(luwu_state));
    parts_->slots = MappedMap(parts_->map_descriptor("slots"), slots * sizeof(luwu_slot));
    parts_->payloads = MappedMap(parts_->map_descriptor("payloads"), slots * wiring.payload_bytes);
    parts_->paths = MappedMap(parts_->map_descriptor("paths"), LUWU_XDP_PEERS * sizeof(luwu_path));
    const std::uint32_t zero = 0;
    const auto weights = weights_of(wiring.key);
    if (bpf_map_update_elem(parts_->map_descriptor("weights"), &zero, weights.get(), BPF_ANY) != 0) {
        throw xdp_error("set the weights of the checksum", errno, "");
    }
    state().epoch = wiring.epoch;
}

XdpProgram::~XdpProgram() = default;

int XdpProgram::descriptor() const { return parts_->program; }
const luwu_job& XdpProgram::job() const { return parts_->job; }
luwu_state& XdpProgram::state() { return *reinterpret_cast<luwu_state*>(parts_->state.data()); }
luwu_slot& XdpProgram::slot(std::uint64_t sequence) {
    return reinterpret_cast<luwu_slot*>(parts_->slots.data())[sequence & parts_->job.slots_mask];
}
std::byte* XdpProgram::payload(std::uint64_t sequence) {
    return parts_->payloads.data() + (sequence & parts_->job.slots_mask) * parts_->job.payload_bytes;
}
luwu_path& XdpProgram::path(std::uint32_t peer) { return reinterpret_cast<luwu_path*>(parts_->paths.data())[peer]; }
std::uint64_t XdpProgram::state_bytes() const { return parts_->slots.bytes() + parts_->payloads.bytes(); }

void XdpProgram::Parts::follow(std::uint32_t child) {
    const std::uint32_t number = reinterpret_cast<const luwu_path*>(paths.data())[child].interface_number;
    bpf_devmap_val target{};
    target.ifindex = number;
    target.bpf_prog.fd = copier;
    // An interface that is gone again is learned anew with the next heartbeat.
    if (bpf_map_update_elem(map_descriptor("copies"), &child, &target, BPF_ANY) == 0) followed[child] = number;
}

void XdpProgram::Parts::list_ports() {
    std::vector<std::pair<std::uint32_t, luwu_port>> all;
    for (std::uint16_t child = 0; child < job.children; ++child) {
        auto found =
            std::find_if(all.begin(), all.end(), [&](const auto& port) { return port.first == followed[child]; });
        if (found == all.end()) {
            all.push_back({followed[child], {}});
            found = std::prev(all.end());
            found->second.number = static_cast<std::uint32_t>(all.size() - 1);
        }
        found->second.child[found->second.children++] = child;
    }
    for (const auto& [number, port] : all) {
        if (number != 0) bpf_map_update_elem(map_descriptor("ports"), &number, &port, BPF_ANY);
    }
}

void XdpProgram::follow_paths() {
    bool changed = false;
    bool complete = true;
    for (std::uint32_t child = 0; child < parts_->job.children; ++child) {
        const std::uint32_t number = path(child).interface_number;
        if (number != 0 && number != parts_->followed[child]) {
            state().broadcasts = 0;
            parts_->follow(child);
            changed = true;
        }
        complete = complete && parts_->followed[child] != 0;
    }
    if (changed) parts_->list_ports();
    if (changed && complete) state().broadcasts = 1;
}

XdpProgram::Counts XdpProgram::counts() const {
    Counts sums{};
    const auto processors = static_cast<std::size_t>(libbpf_num_possible_cpus());
    std::vector<std::uint64_t> each(processors);
    const int map = parts_->map_descriptor("counts");
    for (std::uint32_t what = 0; what < LUWU_XDP_COUNTS; ++what) {
        if (bpf_map_lookup_elem(map, &what, each.data()) != 0) continue;
        for (const std::uint64_t one : each) sums[what] += one;
    }
    return sums;
}

XdpProgram::Action XdpProgram::run(std::vector<std::byte>& frame) {
    std::vector<std::byte> made(frame.size());
    LIBBPF_OPTS(bpf_test_run_opts, options);
    options.data_in = frame.data();
    options.data_size_in = static_cast<std::uint32_t>(frame.size());
    options.data_out = made.data();
    options.data_size_out = static_cast<std::uint32_t>(made.size());
    options.repeat = 1;
    if (bpf_prog_test_run_opts(parts_->program, &options) != 0) throw xdp_error("run the XDP switch", errno, "");
    frame = std::move(made);
    return static_cast<Action>(options.retval);
}

std::vector<std::byte> XdpProgram::frame_from(std::uint32_t peer, std::span<const std::byte> datagram) const {
    const luwu_job& job = parts_->job;
    ethhdr ethernet{};
    ethernet.h_proto = htons(ETH_P_IP);
    udphdr udp{};
    udp.source = job.peers[peer].port;
    udp.dest = job.own.port;
    udp.len = htons(static_cast<std::uint16_t>(sizeof udp + datagram.size()));
    iphdr ip{};
    ip.version = 4;
    ip.ihl = 5;
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.tot_len = htons(static_cast<std::uint16_t>(sizeof ip + sizeof udp + datagram.size()));
    ip.saddr = job.peers[peer].address;
    ip.daddr = job.own.address;
    std::vector<std::byte> frame(sizeof ethernet + sizeof ip + sizeof udp + datagram.size());
    std::memcpy(frame.data(), &ethernet, sizeof ethernet);
    std::memcpy(frame.data() + sizeof ethernet, &ip, sizeof ip);
    std::memcpy(frame.data() + sizeof ethernet + sizeof ip, &udp, sizeof udp);
    std::copy(datagram.begin(), datagram.end(), frame.end() - static_cast<std::ptrdiff_t>(datagram.size()));
    return frame;
}

}  // namespace luwu::fabric

#else

namespace luwu::fabric {

struct XdpProgram::Parts {};

std::string xdp_missing() {
    return "this build of LuWu has no XDP switch; install clang and libbpf-dev, and build it again";
}
XdpProgram::XdpProgram(const Wiring&, const XdpPlace&) { throw Error(ErrorKind::invalid, xdp_missing()); }
XdpProgram::~XdpProgram() = default;
XdpProgram::Counts XdpProgram::counts() const { return {}; }

}  // namespace luwu::fabric

#endif

namespace luwu::fabric {

std::string xdp_unfit(const Wiring& wiring, const XdpPlace& place) {
    if (place.children.size() > LUWU_XDP_MOST_CHILDREN) {
        return "more than " + std::to_string(LUWU_XDP_MOST_CHILDREN) + " children";
    }
    if (wiring.form == LUWU_FLOAT32) return "gradients of form float32: the kernel adds integers only";
    const auto is_other = [](const Address& address) { return !is_ipv4(address); };
    if (is_other(place.own) || is_other(place.parent) ||
        std::any_of(place.children.begin(), place.children.end(), is_other)) {
        return "a neighbour over IPv6";
    }
    return "";
}

}  // namespace luwu::fabric
