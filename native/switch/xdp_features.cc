#include "switch/xdp_features.h"

#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "fabric/core/descriptor.h"

namespace luwu::switching {

namespace {

// In <linux/netdev.h>, which came with Linux 6.3.
constexpr std::string_view kFamily = "netdev";
constexpr std::uint8_t kGetDevice = 1;
constexpr std::uint16_t kInterface = 1;
constexpr std::uint16_t kFeatures = 3;
constexpr std::uint64_t kTakesRedirected = 4;

struct Request {
    nlmsghdr header{};
    genlmsghdr generic{};
    std::array<std::byte, 64> attributes{};
};

Request make_request(std::uint16_t family, std::uint8_t command, std::uint16_t attribute,
                     std::span<const std::byte> value) {
    Request request;
    const nlattr head{static_cast<std::uint16_t>(NLA_HDRLEN + value.size()), attribute};
    std::memcpy(request.attributes.data(), &head, sizeof head);
    std::memcpy(request.attributes.data() + NLA_HDRLEN, value.data(), value.size());
    request.header.nlmsg_len = static_cast<std::uint32_t>(NLMSG_HDRLEN + GENL_HDRLEN + NLA_ALIGN(head.nla_len));
    request.header.nlmsg_type = family;
    request.header.nlmsg_flags = NLM_F_REQUEST;
    request.generic = {command, 1, 0};
    return request;
}

// The value of one attribute of the answer; empty: the kernel knows no such thing.
std::vector<std::byte> ask(int socket, const Request& request, std::uint16_t wanted) {
    alignas(nlmsghdr) std::array<std::byte, 8192> answer{};
    if (send(socket, &request, request.header.nlmsg_len, 0) < 0) return {};
    const ssize_t length = recv(socket, answer.data(), answer.size(), 0);
    const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
    if (length < static_cast<ssize_t>(NLMSG_HDRLEN + GENL_HDRLEN) || header->nlmsg_type == NLMSG_ERROR) return {};
    std::size_t at = NLMSG_HDRLEN + GENL_HDRLEN;
    while (at + NLA_HDRLEN <= static_cast<std::size_t>(length)) {
        nlattr head{};
        std::memcpy(&head, answer.data() + at, sizeof head);
        if (head.nla_len < NLA_HDRLEN || at + head.nla_len > static_cast<std::size_t>(length)) break;
        const auto* value = answer.data() + at + NLA_HDRLEN;
        if ((head.nla_type & NLA_TYPE_MASK) == wanted) return {value, value + head.nla_len - NLA_HDRLEN};
        at += NLA_ALIGN(head.nla_len);
    }
    return {};
}

template <class Value>
bool read_value(const std::vector<std::byte>& bytes, Value& value) {
    if (bytes.size() < sizeof value) return false;
    std::memcpy(&value, bytes.data(), sizeof value);
    return true;
}

}  // namespace

bool takes_redirected_frames(unsigned interface_number) {
    const fabric::Descriptor socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC));
    std::array<char, 8> name{};
    kFamily.copy(name.data(), kFamily.size());
    const auto find = make_request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME,
                                   std::as_bytes(std::span(name.data(), kFamily.size() + 1)));
    std::uint16_t family = 0;
    if (!read_value(ask(socket.get(), find, CTRL_ATTR_FAMILY_ID), family)) return true;
    const auto get = make_request(family, kGetDevice, kInterface, std::as_bytes(std::span(&interface_number, 1)));
    std::uint64_t features = 0;
    return !read_value(ask(socket.get(), get, kFeatures), features) || (features & kTakesRedirected) != 0;
}

}  // namespace luwu::switching
