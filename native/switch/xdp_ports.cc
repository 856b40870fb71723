#include "switch/xdp_ports.h"

#include "store/error.h"

#if LUWU_HAVE_XDP

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "switch/privileges.h"
#include "switch/xdp_features.h"
#include "switch/xdp_support.h"

namespace luwu::switching {

namespace {

fabric::Descriptor load_pass() {
    const std::array<bpf_insn, 2> instructions{{
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, XDP_PASS},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    }};
    LIBBPF_OPTS(bpf_prog_load_opts, options);
    options.expected_attach_type = BPF_XDP;  // the same as the switch's, or one could not replace the other
    fabric::Descriptor program(bpf_prog_load(BPF_PROG_TYPE_XDP, "luwu_pass", "Apache-2.0", instructions.data(),
                                             instructions.size(), &options));
    if (program.get() < 0) throw xdp_error("load an XDP program", errno, "");
    return program;
}

unsigned number_of(const std::string& name) {
    const unsigned number = if_nametoindex(name.c_str());
    if (number != 0) return number;
    throw Error(ErrorKind::invalid, "there is no interface '" + name + "'; `ip link` lists those of this machine");
}

Error attach_error(const std::string& name, int error_number) {
    if (error_number != EBUSY && error_number != EEXIST) {
        return xdp_error("attach the XDP switch to " + name, error_number, "");
    }
    return {ErrorKind::invalid, "interface " + name + " has an XDP program already (`ip link show dev " + name +
                                    "`); end the switch or the program that put it there"};
}

}  // namespace

XdpPorts::XdpPorts(const std::vector<std::string>& interfaces) {
    if (interfaces.empty()) throw Error(ErrorKind::invalid, "an XDP switch needs at least one interface");
    std::vector<unsigned> numbers;
    for (const std::string& name : interfaces) numbers.push_back(number_of(name));
    const RaisedCapabilities raised;
    numbers_end_ = *std::max_element(numbers.begin(), numbers.end()) + 1;
    pass_ = load_pass();
    // Frames go from any port to any other: where one's driver cannot take them, all go through the stack.
    const bool native = std::all_of(numbers.begin(), numbers.end(), takes_redirected_frames);
    for (const std::string& name : interfaces) attach(name, native);
}

void XdpPorts::attach(const std::string& name, bool native) {
    LIBBPF_OPTS(bpf_link_create_opts, options);
    options.flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
    fabric::Descriptor link(bpf_link_create(pass_.get(), static_cast<int>(number_of(name)), BPF_XDP, &options));
    if (link.get() >= 0) {
        ports_.push_back({name, native, std::move(link)});
        return;
    }
    const int error_number = errno;
    const bool refused = error_number == EOPNOTSUPP || error_number == EINVAL || error_number == ERANGE;
    if (!native || !refused) throw attach_error(name, error_number);
    attach(name, false);
}

void XdpPorts::run(int program) {
    const RaisedCapabilities raised;
    for (const Port& port : ports_) {
        if (bpf_link_update(port.link.get(), program, nullptr) == 0) continue;
        throw xdp_error("change the XDP program of " + port.name, errno, "");
    }
}

void XdpPorts::serve(const XdpProgram& program) { run(program.descriptor()); }
void XdpPorts::idle() { run(pass_.get()); }

std::vector<std::pair<std::string, std::string>> XdpPorts::modes() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (const Port& port : ports_) all.emplace_back(port.name, port.native ? "native" : "generic");
    return all;
}

}  // namespace luwu::switching

#else

namespace luwu::switching {

XdpPorts::XdpPorts(const std::vector<std::string>&) { throw Error(ErrorKind::invalid, xdp_missing()); }
void XdpPorts::serve(const XdpProgram&) {}
void XdpPorts::idle() {}
std::vector<std::pair<std::string, std::string>> XdpPorts::modes() const { return {}; }

}  // namespace luwu::switching

#endif
