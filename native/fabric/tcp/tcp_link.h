// A worker's two connections to a TcpServer: one for pulls, one for pushes and first values, so that neither waits for
// the other.
#pragma once

#include "fabric/tcp/tcp_lane.h"

namespace luwu::fabric {

class TcpLink {
  public:
    // Throws Error(invalid) for TLS files that cannot be used.
    TcpLink(TcpLinkSettings settings, std::function<void(const Error&)> on_failure);

    void start();                   // connects, in threads of its own
    void post(TcpRequest request);  // any thread; never waits
    void ask_to_stop();             // any thread: requests without an answer fail
    void stop();                    // waits for the threads
    // True if both connections are there, or have failed for good, by then.
    [[nodiscard]] bool wait_connected(Clock::time_point deadline);
    [[nodiscard]] TcpLinkStats stats() const;
    // Time since the first of the two broke; 0: both are there.
    [[nodiscard]] std::chrono::milliseconds broken_for() const;
    // Time without an acknowledgement of what was sent, the longer one; 0: nothing waits for one, or it is broken.
    [[nodiscard]] std::chrono::milliseconds silent_for() const;

  private:
    TcpLink(TcpLinkSettings settings, std::function<void(const Error&)> on_failure, std::uint64_t incarnation);

    TcpLinkSettings settings_;
    std::optional<TlsContext> tls_;
    TcpLane pulls_;
    TcpLane pushes_;
};

}  // namespace luwu::fabric
