#include "switch/xdp_program.h"

#include <algorithm>

#include "store/error.h"

#if LUWU_HAVE_XDP

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "switch/privileges.h"
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

namespace luwu::switching {

static_assert(sizeof(luwu_slot) == 64 && offsetof(luwu_state, sent_end) == 64, "processors share cache lines");

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
    void load(std::uint32_t interfaces_end);
    void follow(std::uint32_t child);
    void list_ports();
};

void XdpProgram::Parts::load(std::uint32_t interfaces_end) {
    const std::lock_guard hold(libbpf_turn());
    const LibbpfMessages messages;
    const auto bytes = static_cast<std::size_t>(luwu_xdp_object_end - luwu_xdp_object_begin);
    object.reset(bpf_object__open_mem(luwu_xdp_object_begin, bytes, nullptr));
    if (object == nullptr) throw xdp_error("open the XDP switch", errno, messages.text());
    prepare_xdp(object.get(), job, interfaces_end);
    if (const int failed = bpf_object__load(object.get()); failed != 0) {
        throw xdp_error("load the XDP switch into the kernel", -failed, messages.text());
    }
    program = bpf_program__fd(bpf_object__find_program_by_name(object.get(), "luwu_switch"));
    copier = bpf_program__fd(bpf_object__find_program_by_name(object.get(), "luwu_copy"));
}

XdpProgram::XdpProgram(const fabric::Wiring& wiring, const XdpPlace& place) : parts_(std::make_unique<Parts>()) {
    const RaisedCapabilities raised;
    parts_->job = xdp_job(wiring, place);
    parts_->load(place.interfaces_end);
    const std::size_t slots = std::size_t{parts_->job.slots_mask} + 1;
    parts_->state = MappedMap(parts_->map_descriptor("state"), sizeof(luwu_state));
    parts_->slots = MappedMap(parts_->map_descriptor("slots"), slots * sizeof(luwu_slot));
    parts_->payloads = MappedMap(parts_->map_descriptor("payloads"), slots * wiring.payload_bytes);
    parts_->paths = MappedMap(parts_->map_descriptor("paths"), LUWU_XDP_PEERS * sizeof(luwu_path));
    const std::uint32_t zero = 0;
    const auto weights = xdp_weights(wiring.key);
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
std::span<const std::uint64_t> XdpProgram::biased_sum(std::uint64_t sequence) {
    const std::size_t words = parts_->job.payload_bytes / sizeof(std::uint64_t);
    const auto* first = reinterpret_cast<const std::uint64_t*>(parts_->payloads.data());
    return {first + (sequence & parts_->job.slots_mask) * words, words};
}
void XdpProgram::copy_sum(std::uint64_t sequence, std::span<std::byte> to) {
    const fabric::Head& head = slot(sequence).head;
    for (const std::uint64_t biased : biased_sum(sequence)) {
        const std::uint64_t word = luwu_unbiased(head.form == LUWU_INT16, biased, head.sender);
        const std::size_t bytes = std::min(sizeof word, to.size());
        std::memcpy(to.data(), &word, bytes);
        to = to.subspan(bytes);
    }
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
        if (found == all.end()) found = all.insert(found, {followed[child], {}});
        found->second.child[found->second.children++] = child;
    }
    for (std::uint32_t number = 0; number < all.size(); ++number) {
        const auto& [interface, port] = all[number];
        if (interface == 0) continue;
        bpf_map_update_elem(map_descriptor("ports"), &number, &port, BPF_ANY);
        bpf_map_update_elem(map_descriptor("port_numbers"), &interface, &number, BPF_ANY);
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

XdpProgram::Stats XdpProgram::stats() const {
    Stats sums{};
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
    return xdp_frame(parts_->job.peers[peer], parts_->job.own, datagram);
}

}  // namespace luwu::switching

#else

namespace luwu::switching {

struct XdpProgram::Parts {};

std::string xdp_missing() {
    return "this build of LuWu has no XDP switch; install clang and libbpf-dev, and build it again";
}
XdpProgram::XdpProgram(const fabric::Wiring&, const XdpPlace&) { throw Error(ErrorKind::invalid, xdp_missing()); }
XdpProgram::~XdpProgram() = default;
XdpProgram::Stats XdpProgram::stats() const { return {}; }

}  // namespace luwu::switching

#endif
