#include "fabric/core/address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <array>
#include <charconv>
#include <cstring>

#include "store/error.h"

namespace luwu::fabric {

namespace {

[[noreturn]] void refuse(const std::string& host, const std::string& why) {
    throw Error(ErrorKind::invalid, "the address '" + host + "' " + why);
}

std::uint32_t interface_number(const std::string& host, const std::string& interface) {
    std::uint32_t number = 0;
    const char* end = interface.data() + interface.size();
    if (const auto [rest, error] = std::from_chars(interface.data(), end, number); error != std::errc{} || rest != end)
        number = if_nametoindex(interface.c_str());
    if (number == 0) refuse(host, "names the interface '" + interface + "', which this machine does not have");
    return number;
}

const std::uint8_t* ipv4_bytes(const Address& address) { return address.value.sin6_addr.s6_addr + 12; }

}  // namespace

bool Address::operator==(const Address& other) const {
    return value.sin6_family == other.value.sin6_family && value.sin6_port == other.value.sin6_port &&
           value.sin6_scope_id == other.value.sin6_scope_id &&
           std::memcmp(&value.sin6_addr, &other.value.sin6_addr, sizeof value.sin6_addr) == 0;
}

Address parse_address(const std::string& host, std::uint16_t port) {
    Address address;
    address.value.sin6_family = AF_INET6;
    address.value.sin6_port = htons(port);
    std::uint8_t* bytes = address.value.sin6_addr.s6_addr;
    const bool whole = host.find('\0') == std::string::npos;  // inet_pton reads no further
    if (whole && inet_pton(AF_INET, host.c_str(), bytes + 12) == 1) {
        bytes[10] = bytes[11] = 0xff;
        return address;
    }
    const std::size_t percent = host.find('%');
    if (!whole || inet_pton(AF_INET6, host.substr(0, percent).c_str(), bytes) != 1) {
        refuse(host, "is not a number like 10.0.0.7 or fd00::7; names are not looked up, so give the number");
    }
    if (percent != std::string::npos && is_ipv4(address)) refuse(host, "names an interface, which IPv4 does not have");
    if (percent != std::string::npos) address.value.sin6_scope_id = interface_number(host, host.substr(percent + 1));
    return address;
}

std::string to_text(const Address& address) {
    if (!address.known()) return "nobody";
    const std::string port = ":" + std::to_string(port_of(address));
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (is_ipv4(address)) return inet_ntop(AF_INET, ipv4_bytes(address), text.data(), text.size()) + port;
    std::string host = inet_ntop(AF_INET6, &address.value.sin6_addr, text.data(), text.size());
    if (const std::uint32_t number = address.value.sin6_scope_id; number != 0) {
        std::array<char, IF_NAMESIZE> name{};
        host += std::string("%") + (if_indextoname(number, name.data()) ? name.data() : std::to_string(number));
    }
    return "[" + host + "]" + port;
}

std::uint16_t port_of(const Address& address) { return ntohs(address.value.sin6_port); }

bool is_ipv4(const Address& address) { return IN6_IS_ADDR_V4MAPPED(&address.value.sin6_addr); }

bool is_multicast(const Address& address) {
    if (is_ipv4(address)) return (ipv4_bytes(address)[0] & 0xf0U) == 0xe0U;
    return IN6_IS_ADDR_MULTICAST(&address.value.sin6_addr);
}

bool is_wildcard(const Address& address) {
    if (!is_ipv4(address)) return IN6_IS_ADDR_UNSPECIFIED(&address.value.sin6_addr);
    constexpr std::array<std::uint8_t, 4> kAny{};
    return std::memcmp(ipv4_bytes(address), kAny.data(), kAny.size()) == 0;
}

}  // namespace luwu::fabric

// Participants of a run differ in the last bytes of the address and in the port, so all bits must reach the low ones.
std::size_t std::hash<luwu::fabric::Address>::operator()(const luwu::fabric::Address& address) const noexcept {
    std::array<std::uint64_t, 2> words{};
    std::memcpy(words.data(), &address.value.sin6_addr, sizeof words);
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
    std::uint64_t mixed = (words[0] ^ address.value.sin6_scope_id) * kOdd;
    mixed = (mixed ^ (mixed >> 32U) ^ words[1]) * kOdd;
    mixed = (mixed ^ (mixed >> 32U) ^ address.value.sin6_port) * kOdd;
    return mixed ^ (mixed >> 32U);
}
