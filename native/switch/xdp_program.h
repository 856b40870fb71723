// The XDP switch (bpf/), loaded for one job, and the maps that it shares with this process. Nothing of it is reachable
// from another job: each has maps of its own, which go with this object.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "switch/xdp_job.h"

namespace luwu::switching {

// Why this build cannot have a switch in the kernel, or "".
[[nodiscard]] std::string xdp_missing();
class XdpProgram {
  public:
    enum class Action : std::uint8_t { aborted, drop, pass, send_back, redirect };  // as of XDP
    using Stats = std::array<std::uint64_t, LUWU_XDP_COUNTS>;

    // Throws Error: permission, or io where the kernel refuses the program.
    XdpProgram(const fabric::Wiring& wiring, const XdpPlace& place);
    ~XdpProgram();
    XdpProgram(const XdpProgram&) = delete;
    XdpProgram& operator=(const XdpProgram&) = delete;

    [[nodiscard]] int descriptor() const;
    [[nodiscard]] luwu_state& state();
    [[nodiscard]] luwu_slot& slot(std::uint64_t sequence);
    [[nodiscard]] std::span<const std::uint64_t> biased_sum(std::uint64_t sequence);  // bpf/words.h
    void copy_sum(std::uint64_t sequence, std::span<std::byte> to);                   // as it is on the wire
    [[nodiscard]] luwu_path& path(std::uint32_t peer);
    [[nodiscard]] const luwu_job& job() const;
    [[nodiscard]] std::uint64_t state_bytes() const;
    // Copies go to the children whose paths the program has learned since; once all are known, it makes them itself.
    void follow_paths();
    [[nodiscard]] Stats stats() const;

    // Runs the program on one frame, which becomes what it makes of it. Throws Error(io).
    Action run(std::vector<std::byte>& frame);
    // The frame in which this peer's datagram would come.
    [[nodiscard]] std::vector<std::byte> frame_from(std::uint32_t peer, std::span<const std::byte> datagram) const;

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace luwu::switching
