// Addresses of the network fabric as text, and as keys of hash tables. Numeric only: nothing here asks a name server.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace luwu::fabric {

// An IPv4 or IPv6 address and port; all zero: nobody.
struct Address {
    sockaddr_in6 value{};  // IPv4 as ::ffff:a.b.c.d
    bool operator==(const Address& other) const;
    [[nodiscard]] bool known() const { return value.sin6_family != 0; }
};

// "10.0.0.7", "fd00::7", or "fe80::7%eth0" (an interface's name or number). Throws Error(invalid).
[[nodiscard]] Address parse_address(const std::string& host, std::uint16_t port);
// "10.0.0.7:4000", "[fd00::7]:4000", "nobody".
[[nodiscard]] std::string to_text(const Address& address);

[[nodiscard]] std::uint16_t port_of(const Address& address);
[[nodiscard]] bool is_ipv4(const Address& address);
[[nodiscard]] bool is_multicast(const Address& address);
[[nodiscard]] bool is_wildcard(const Address& address);  // 0.0.0.0 or ::

}  // namespace luwu::fabric

template <>
struct std::hash<luwu::fabric::Address> {
    std::size_t operator()(const luwu::fabric::Address& address) const noexcept;
};
