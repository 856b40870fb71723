#include "fabric/udp/datagrams.h"

#include <ifaddrs.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "fabric/core/address.h"

namespace luwu::fabric {

namespace {

constexpr std::uint32_t kLongestRunBytes = 65'535;  // that GRO makes
constexpr int kMarks = 3;                           // bits of the type of service that are for marks (RFC 3168)
constexpr int kMayBeMarked = 2;
constexpr int kMarked = 3;

// In glibc's <bits/in.h> since 2.31 only.
#ifndef IPV6_MULTICAST_ALL
constexpr int IPV6_MULTICAST_ALL = 29;
#endif

template <class Value>
bool set(int descriptor, int level, int option, const Value& value) {
    return setsockopt(descriptor, level, option, &value, sizeof value) == 0;
}

template <class Value>
void require(int descriptor, int level, int option, const Value& value, const char* action, const Address& address) {
    if (!set(descriptor, level, option, value)) throw network_error(action, address, errno);
}

std::uint32_t granted(int descriptor, int option) {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    getsockopt(descriptor, SOL_SOCKET, option, &bytes, &length);
    return static_cast<std::uint32_t>(bytes) / 2;  // the kernel counts twice what was asked for, for its own records
}

in_addr ipv4_of(const Address& address) {
    in_addr out{};
    if (is_ipv4(address)) std::memcpy(&out, address.value.sin6_addr.s6_addr + 12, sizeof out);
    return out;
}

// The number of the interface that has this IPv6 address; 0, the kernel's choice, where none has it.
unsigned interface_of(const Address& address) {
    if (address.value.sin6_scope_id != 0) return address.value.sin6_scope_id;
    ifaddrs* all = nullptr;
    if (is_wildcard(address) || getifaddrs(&all) != 0) return 0;
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6) continue;
        sockaddr_in6 other{};
        std::memcpy(&other, one->ifa_addr, sizeof other);
        if (IN6_ARE_ADDR_EQUAL(&other.sin6_addr, &address.value.sin6_addr)) return if_nametoindex(one->ifa_name);
    }
    return 0;
}

// Datagrams to groups leave through the interface of the bound address.
void choose_interface(int descriptor, const Address& bound) {
    if (is_wildcard(bound)) return;
    if (is_ipv4(bound)) {
        require(descriptor, IPPROTO_IP, IP_MULTICAST_IF, ip_mreqn{{}, ipv4_of(bound), 0}, "choose the interface of",
                bound);
    } else if (const unsigned number = interface_of(bound); number != 0) {
        require(descriptor, IPPROTO_IPV6, IPV6_MULTICAST_IF, number, "choose the interface of", bound);
    }
}

Descriptor open_socket(const Address& address) {
    Descriptor made(socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (made.get() < 0) throw network_error("open a socket for", address, errno);
    require(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "open a socket for both IPv4 and IPv6 at", address);
    // A fragmented datagram is lost when one of its fragments is, and is put together in a small buffer of the kernel.
    require(made.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "forbid fragments from", address);
    require(made.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, "forbid fragments from", address);
    return made;
}

void bind_socket(const Descriptor& socket, const Address& address) {
    if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value), sizeof address.value) != 0) {
        throw network_error("receive at", address, errno);
    }
}

// Buffers beyond the machine's limit are for those who may (CAP_NET_ADMIN); others get the limit.
void size_buffers(const Descriptor& socket, const UdpSettings& settings) {
    const int receive = static_cast<int>(settings.kernel_receive_bytes);
    const int send = static_cast<int>(settings.kernel_send_bytes);
    if (!set(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, receive)) {
        set(socket.get(), SOL_SOCKET, SO_RCVBUF, receive);
    }
    if (!set(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, send)) set(socket.get(), SOL_SOCKET, SO_SNDBUF, send);
}

// With every datagram the kernel says whether it was marked.
void hear_marks(int descriptor) {
    set(descriptor, IPPROTO_IP, IP_RECVTOS, 1);
    set(descriptor, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
}

// Returns the kernel's note of this kind beside a datagram; nothing: this note is another.
template <class Value>
std::optional<Value> told_in(const cmsghdr& note, int level, int type) {
    if (note.cmsg_level != level || note.cmsg_type != type) return std::nullopt;
    Value value{};
    std::memcpy(&value, CMSG_DATA(&note), sizeof value);
    return value;
}

// True for a report on datagrams sent earlier, or of an interface that went down.
bool is_report(int error_number) {
    switch (error_number) {
        case ECONNREFUSED:
        case EHOSTUNREACH:
        case EHOSTDOWN:
        case ENETUNREACH:
        case ENETDOWN:
        case EMSGSIZE:
        case EPROTO:
        case ENOPROTOOPT:
        case EACCES:
        case EPERM:
            return true;
        default:
            return false;
    }
}

}  // namespace

Error network_error(const std::string& action, const Address& address, int error_number) {
    const std::string message = "cannot " + action + " " + to_text(address) + ": " + std::strerror(error_number);
    switch (error_number) {
        case EACCES:
        case EPERM:
            return {ErrorKind::permission, message + "; choose a port of 1024 or above, or give this user the right"};
        case EADDRINUSE:
            return {ErrorKind::io, message + "; choose another port, or 0 for any that is free"};
        case EADDRNOTAVAIL:
            return {ErrorKind::io, message + "; choose an address of this machine (`ip address` lists them)"};
        case EAFNOSUPPORT:
            return {ErrorKind::io, message + "; the kernel must have IPv6, even where only IPv4 is used"};
        default:
            return {ErrorKind::io, message};
    }
}

Address address_towards(const Address& to) {
    const Descriptor probe = open_socket(to);
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&to.value), sizeof to.value) != 0) {
        throw network_error("find a way to", to, errno);
    }
    Address own;
    socklen_t length = sizeof own.value;
    getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own.value), &length);
    own.value.sin6_port = 0;
    return own;
}

UdpSocket::UdpSocket(const Address& bound, const UdpSettings& settings)
    : settings_(settings), bound_(bound), socket_(open_socket(bound)) {
    if (settings.receive_buffers == 0 || settings.buffer_bytes == 0) {
        throw Error(ErrorKind::invalid, "a socket receives into at least one buffer of at least one byte");
    }
    const int descriptor = socket_.get();
    size_buffers(socket_, settings);
    choose_interface(descriptor, bound);
    require(descriptor, IPPROTO_IP, IP_MULTICAST_TTL, settings.multicast_hops, "limit the hops from", bound);
    require(descriptor, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, settings.multicast_hops, "limit the hops from", bound);
    require(descriptor, IPPROTO_IP, IP_MULTICAST_LOOP, 0, "keep groups from hearing themselves at", bound);
    require(descriptor, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0, "keep groups from hearing themselves at", bound);
    segments_ = settings.segment_on_send && set(descriptor, IPPROTO_UDP, UDP_SEGMENT, 0);  // 0: only asks
    merges_ = settings.merge_on_receive && settings.buffer_bytes > kLongestRunBytes &&
              set(descriptor, IPPROTO_UDP, UDP_GRO, 1);
    hear_marks(descriptor);
    bind_socket(socket_, bound);
    socklen_t length = sizeof bound_.value;
    getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound_.value), &length);

    const std::size_t count = settings.receive_buffers;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(count * settings.buffer_bytes);
    senders_.resize(count);
    pieces_.resize(count);
    controls_.resize(count);
    headers_.resize(count);
    received_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        pieces_[i] = {memory_.get() + i * settings.buffer_bytes, settings.buffer_bytes};
        headers_[i].msg_hdr.msg_iov = &pieces_[i];
        headers_[i].msg_hdr.msg_iovlen = 1;
        headers_[i].msg_hdr.msg_name = &senders_[i].value;
        headers_[i].msg_hdr.msg_control = controls_[i].data();
    }
}

void UdpSocket::join(const Address& group) {
    if (!is_multicast(group) || port_of(group) == 0 || (is_ipv4(group) != is_ipv4(bound_) && !is_wildcard(bound_))) {
        throw Error(ErrorKind::invalid, to_text(group) + " is not a group of " + to_text(bound_) +
                                            "; give a multicast address of the same kind, and a port");
    }
    Address heard = group;
    Descriptor joined = open_socket(group);
    const int descriptor = joined.get();
    size_buffers(joined, settings_);
    require(descriptor, SOL_SOCKET, SO_REUSEADDR, 1, "share", group);
    if (merges_) set(descriptor, IPPROTO_UDP, UDP_GRO, 1);
    hear_marks(descriptor);
    // Without these a group that another process joined, at another interface, would be heard as well.
    require(descriptor, IPPROTO_IP, IP_MULTICAST_ALL, 0, "join", group);
    set(descriptor, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
    if (is_ipv4(group)) {
        require(descriptor, IPPROTO_IP, IP_ADD_MEMBERSHIP, ip_mreqn{ipv4_of(group), ipv4_of(bound_), 0}, "join", group);
    } else {
        if (heard.value.sin6_scope_id == 0) heard.value.sin6_scope_id = interface_of(bound_);
        const ipv6_mreq request{group.value.sin6_addr, heard.value.sin6_scope_id};
        require(descriptor, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, request, "join", group);
    }
    bind_socket(joined, heard);
    group_ = std::move(joined);
}

bool UdpSocket::receive() {
    received_.clear();
    std::size_t filled = 0;
    if (group_.get() < 0) return receive_from(socket_.get(), filled);
    group_first_ = !group_first_;  // in turn, so that neither keeps the other from being heard
    const bool first = receive_from(group_first_ ? group_.get() : socket_.get(), filled);
    const bool second = receive_from(group_first_ ? socket_.get() : group_.get(), filled);
    return first || second;
}

bool UdpSocket::receive_from(int descriptor, std::size_t& filled) {
    const std::size_t room = headers_.size() - filled;
    if (room == 0) return true;
    mmsghdr* headers = headers_.data() + filled;
    for (std::size_t i = 0; i < room; ++i) {
        headers[i].msg_hdr.msg_namelen = sizeof(sockaddr_in6);
        headers[i].msg_hdr.msg_controllen = controls_[0].size();
    }
    ++stats_.receive_calls;
    const int count = recvmmsg(descriptor, headers, static_cast<unsigned>(room), MSG_DONTWAIT, nullptr);
    if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
        if (errno == EINTR) return true;
        if (!is_report(errno)) throw network_error("receive at", bound_, errno);
        ++stats_.receive_errors;
        return true;
    }
    for (int i = 0; i < count; ++i) take(filled++, headers[i].msg_len);
    return static_cast<std::size_t>(count) == room;
}

void UdpSocket::take(std::size_t index, std::size_t bytes) {
    msghdr& header = headers_[index].msg_hdr;
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        ++stats_.dropped_cut;
        return;
    }
    std::size_t segment_bytes = bytes;
    int service = 0;
    for (cmsghdr* note = CMSG_FIRSTHDR(&header); note != nullptr; note = CMSG_NXTHDR(&header, note)) {
        const auto merged = told_in<int>(*note, IPPROTO_UDP, UDP_GRO);
        if (merged && *merged > 0) segment_bytes = static_cast<std::size_t>(*merged);
        if (const auto type = told_in<std::uint8_t>(*note, IPPROTO_IP, IP_TOS)) service = *type;
        if (const auto traffic_class = told_in<int>(*note, IPPROTO_IPV6, IPV6_TCLASS)) service = *traffic_class;
    }
    segment_bytes = std::max<std::size_t>(segment_bytes, 1);  // an empty datagram is one too
    stats_.datagrams_received += std::max<std::size_t>(1, (bytes + segment_bytes - 1) / segment_bytes);
    stats_.bytes_received += bytes;
    received_.push_back({&senders_[index], memory_.get() + index * settings_.buffer_bytes, bytes, segment_bytes,
                         (service & kMarks) == kMarked});
}

void UdpSocket::let_mark(bool may_mark) const {
    const int service = may_mark ? kMayBeMarked : 0;
    set(socket_.get(), IPPROTO_IP, IP_TOS, service);
    set(socket_.get(), IPPROTO_IPV6, IPV6_TCLASS, service);
}

std::uint32_t UdpSocket::payload_limit(const Address& to) const {
    const Descriptor probe = open_socket(to);
    Address from = bound_;
    from.value.sin6_port = 0;
    choose_interface(probe.get(), from);
    bind_socket(probe, from);
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&to.value), sizeof to.value) != 0) {
        throw network_error("find a way to", to, errno);
    }
    int mtu = 0;
    socklen_t length = sizeof mtu;
    const bool ipv4 = is_ipv4(to);
    if (getsockopt(probe.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &length) != 0) {
        throw network_error("learn the MTU of the way to", to, errno);
    }
    constexpr std::uint32_t kUdpBytes = 8;
    const std::uint32_t headers = kUdpBytes + (ipv4 ? 20U : 40U);
    return std::min(static_cast<std::uint32_t>(mtu) - headers, ipv4 ? kMostPayloadIpv4Bytes : kMostPayloadIpv6Bytes);
}

std::uint32_t UdpSocket::kernel_receive_bytes() const { return granted(socket_.get(), SO_RCVBUF); }
std::uint32_t UdpSocket::kernel_send_bytes() const { return granted(socket_.get(), SO_SNDBUF); }

std::uint64_t UdpSocket::kernel_drops() const {
    std::uint64_t drops = 0;
    for (const int descriptor : {socket_.get(), group_.get()}) {
        std::array<std::uint32_t, SK_MEMINFO_VARS> information{};
        socklen_t length = sizeof information;
        if (descriptor < 0) continue;
        getsockopt(descriptor, SOL_SOCKET, SO_MEMINFO, information.data(), &length);
        drops += information[SK_MEMINFO_DROPS];
    }
    return drops;
}

}  // namespace luwu::fabric
