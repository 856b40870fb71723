// A connected socket with or without TLS, which never blocks but in wait(). One thread reads and writes it; any thread
// rings its bell.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "fabric/tcp/socket.h"
#include "fabric/tcp/tls.h"

namespace luwu::fabric {

class Channel {
  public:
    // The bell outlives the channel. `tls` null: plain. `address`: what was connected to, for TLS.
    Channel(Descriptor socket, Bell& bell, const TlsContext* tls, const std::string& address);

    // All of these throw Broken when the connection ends, or when the time that limit() gave is over.
    void handshake();
    [[nodiscard]] std::size_t read_some(std::span<std::byte> into);  // 0: nothing there now
    // 0: no room now. `more` follows at once.
    [[nodiscard]] std::size_t write_some(std::span<const std::byte> from, bool more);
    // Until there may be something to read, room to write if `writing`, or the bell was rung. After a read (and a
    // write) that gave 0 only.
    void wait(bool writing);
    void wait_for_bell();

    void limit(Clock::time_point deadline) { deadline_ = deadline; }  // any thread; ring the bell after it
    // Ends what the channel's thread does with it, from any thread.
    void abort();
    // Says that nothing more comes and waits for the other side to close, so that it can read all that was written.
    void finish(Clock::time_point deadline);
    // See unacknowledged_for; any thread.
    [[nodiscard]] std::chrono::milliseconds silent_for() const { return unacknowledged_for(socket_); }
    [[nodiscard]] bool encrypted() const { return tls_.has_value(); }

  private:
    Descriptor socket_;
    Bell& bell_;
    std::optional<TlsStream> tls_;
    short read_events_;
    short write_events_;
    std::atomic<Clock::time_point> deadline_{Clock::time_point::max()};
};

}  // namespace luwu::fabric
