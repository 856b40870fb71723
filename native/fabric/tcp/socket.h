// TCP sockets: listening, connecting within a time limit, and a bell that wakes a thread which waits for one.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "fabric/core/descriptor.h"
#include "fabric/tcp/timing.h"

namespace luwu::fabric {

// A connection that ended or could not be made. It may be made again; it never leaves the fabric.
class Broken : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};
// The same, because its time was over.
class TimedOut : public Broken {
  public:
    using Broken::Broken;
};

// Rung by any thread; the thread that waits with wait_for() looks for itself what there is to do.
class Bell {
  public:
    Bell();  // throws Error(io)
    void ring() const;
    void quiet() const;  // forgets that it was rung
    // From here on every wait_for() with this bell throws Broken.
    void stop();
    [[nodiscard]] bool stopped() const { return stopped_; }
    [[nodiscard]] int descriptor() const { return event_.get(); }

  private:
    Descriptor event_;
    std::atomic<bool> stopped_{false};
};

// Waits for `events` (as of poll; 0: for the bell alone) at the socket or for the bell. Throws TimedOut at the
// deadline.
void wait_for(int socket, short events, const Bell& bell, Clock::time_point deadline);

// Listens at a host name, an IPv4 or an IPv6 address. Port 0: the kernel chooses; bound_port() tells.
[[nodiscard]] Descriptor listen_at(const std::string& address, std::uint16_t port);  // throws Error(invalid)
[[nodiscard]] std::uint16_t bound_port(const Descriptor& listener);
// Throws Broken with the reason.
[[nodiscard]] Descriptor connect_to(const std::string& address, std::uint16_t port, const Bell& bell,
                                    Clock::time_point deadline);
// No delay, keepalive, and a limit on how long the other host may acknowledge nothing.
void tune(const Descriptor& socket, const Timing& timing);
// Time since the other host acknowledged anything, where something that was sent waits for it; 0: nothing does.
[[nodiscard]] std::chrono::milliseconds unacknowledged_for(const Descriptor& socket);
// "host:port", with an IPv6 address in brackets.
[[nodiscard]] std::string name_of(const std::string& address, std::uint16_t port);
// Blocks SIGPIPE in this thread: OpenSSL's writes raise it where the other side is gone.
void block_sigpipe();

}  // namespace luwu::fabric
