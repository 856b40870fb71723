#include "fabric/tcp/crowd.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace luwu::fabric {

namespace {
constexpr std::size_t kNetworkBytes = 8;
}  // namespace

Origin origin_of(const sockaddr_storage& address) {
    Origin origin{};
    if (address.ss_family == AF_INET) {
        const auto& ip = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
        std::memcpy(origin.data() + origin.size() - sizeof ip, &ip, sizeof ip);
    } else if (address.ss_family == AF_INET6) {
        const auto& ip = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
        const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&ip);
        if (is_ipv4) {
            std::memcpy(origin.data() + 12, ip.s6_addr + 12, 4);
        } else {
            std::memcpy(origin.data(), &ip, kNetworkBytes);
        }
    }
    return origin;
}

std::optional<std::uint64_t> Crowd::enter(std::uint64_t number, const Origin& origin) {
    origins_[number] = origin;
    ++counts_[origin];
    if (origins_.size() <= most_) return std::nullopt;
    const auto largest =
        std::max_element(counts_.begin(), counts_.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const auto oldest = std::find_if(origins_.begin(), origins_.end(), [&](auto& entry) {
        return counts_.at(entry.second) == largest->second;  // the newest goes only where no other is of this origin
    });
    const std::uint64_t goes = oldest->first;
    leave(goes);
    return goes;
}

void Crowd::leave(std::uint64_t number) {
    const auto found = origins_.find(number);
    if (found == origins_.end()) return;
    const auto count = counts_.find(found->second);
    if (--count->second == 0) counts_.erase(count);
    origins_.erase(found);
}

}  // namespace luwu::fabric
