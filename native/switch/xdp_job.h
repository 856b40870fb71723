// Description of a job for the XDP switch before it is loaded, and frames as it sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fabric/protocol/wiring.h"
#include "switch/xdp_layout.h"

struct bpf_object;

namespace luwu::switching {

struct XdpPlace {
    fabric::Address own;  // where neighbours send to
    fabric::Address parent;
    std::uint16_t child = 0;  // among the parent's children
    std::vector<fabric::Address> children;
    std::uint32_t interfaces_end = 1;  // one past the highest number of an interface that it is attached to
};

// Why the program cannot serve this job, or "": a switch in user space then does.
[[nodiscard]] std::string xdp_unfit(const fabric::Wiring& wiring, const XdpPlace& place);

[[nodiscard]] luwu_job xdp_job(const fabric::Wiring& wiring, const XdpPlace& place);
[[nodiscard]] std::unique_ptr<luwu_weights> xdp_weights(std::uint64_t key);
// Sets the sizes of maps, and the constants. Throws Error(io).
void prepare_xdp(bpf_object* object, const luwu_job& job, std::uint32_t interfaces_end);
// An Ethernet frame without addresses around a datagram.
[[nodiscard]] std::vector<std::byte> xdp_frame(const luwu_peer& from, const luwu_peer& to,
                                               std::span<const std::byte> datagram);

}  // namespace luwu::switching
