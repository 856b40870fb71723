// A switch on its own host: a SwitchNode over UDP, and where interfaces are named, the XDP switch in front of it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fabric/udp/node_loop.h"
#include "switch/switch_node.h"
#include "switch/xdp_ports.h"

namespace luwu::switching {

// Work of the kernel for a switch. `why_not` it does nothing for the present job: empty, it adds up and copies.
struct XdpStatus {
    std::vector<std::pair<std::string, std::string>> modes;
    std::string why_not;
    XdpProgram::Stats stats{};
};

// Every function may be called from any thread: one may ask while another starts it for the next job.
class UdpSwitch {
  public:
    // Throws Error. `interfaces`: whose packets are added up and copied inside the kernel; none: all in this process.
    explicit UdpSwitch(const fabric::Address& bound, const fabric::UdpSettings& settings = {},
                       const std::vector<std::string>& interfaces = {});
    [[nodiscard]] fabric::Address bound() const { return bound_; }
    // Works for a job, or for the next one: what it knew of the last is gone. Throws Error.
    void start(const fabric::Wiring& wiring, const fabric::Address& parent, std::uint16_t child,
               const std::vector<fabric::Address>& children);
    void stop();  // for no job, until it is started again
    [[nodiscard]] std::optional<SwitchNodeStats> node_stats();
    [[nodiscard]] std::optional<fabric::UdpStats> socket_stats();
    [[nodiscard]] std::exception_ptr failure();
    [[nodiscard]] std::optional<XdpStatus> xdp() const;  // nothing without interfaces
    // Records the sums of blocks of the present job, at most so many; the end of the job ends it, and forgets them.
    void start_trace(std::uint64_t most_records);
    [[nodiscard]] trace::Recorded stop_trace();

  private:
    [[nodiscard]] std::unique_ptr<SlotTable> slots_in_kernel(const fabric::Wiring& wiring, const XdpPlace& place);
    void end_job();  // with the mutex held

    mutable std::mutex mutex_;
    fabric::Address bound_;
    fabric::UdpSettings settings_;
    std::unique_ptr<XdpPorts> ports_;
    std::string why_not_;
    std::optional<fabric::UdpSocket> socket_;  // while there is no job
    std::unique_ptr<XdpProgram> program_;      // of the job; null: none can serve it
    std::unique_ptr<SwitchNode> node_;
    std::unique_ptr<fabric::NodeLoop> loop_;
};

}  // namespace luwu::switching
