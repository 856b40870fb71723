// Limits the number of connections that have proved nothing yet, and chooses which one is closed for a new one.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace luwu::fabric {

// The origin of a connection: an IPv4 address, or the first 64 bits of an IPv6 address, because one host may have any
// number of addresses that begin with them.
using Origin = std::array<std::byte, 16>;
[[nodiscard]] Origin origin_of(const sockaddr_storage& address);

// Holds at most `most` connections. When one more enters, the oldest one of the origin with the most connections has to
// go: a host that opens many connections displaces its own, and those of other hosts stay. One thread at a time.
class Crowd {
  public:
    explicit Crowd(std::size_t most) : most_(most) {}
    // `number` grows with each connection. Returns the number of the connection that has to go; this call has removed
    // it.
    [[nodiscard]] std::optional<std::uint64_t> enter(std::uint64_t number, const Origin& origin);
    void leave(std::uint64_t number);  // does nothing if the connection has left
    [[nodiscard]] std::size_t size() const { return origins_.size(); }

  private:
    std::size_t most_;
    std::map<std::uint64_t, Origin> origins_;  // the oldest first
    std::map<Origin, std::size_t> counts_;
};

}  // namespace luwu::fabric
