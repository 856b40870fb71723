// An address as text, as the control plane and the command line bring it.
#include "fabric/core/address.h"

#include "target.h"

LUWU_FUZZ_TARGET("address") {
    using namespace luwu::fabric;
    using luwu::fuzz::require;
    luwu::fuzz::Input input(data);
    const auto port = input.number<std::uint16_t>();
    const luwu::fuzz::Bytes given = input.rest();
    const std::string host(reinterpret_cast<const char*>(given.data()), given.size());
    Address address;
    if (luwu::fuzz::error_of({luwu::ErrorKind::invalid}, [&] { address = parse_address(host, port); })) return;
    require(address.known() && port_of(address) == port, "an address has the port that it was given");
    const std::string text = to_text(address);
    const std::string shown = text.substr(0, text.rfind(':'));
    require(is_ipv4(address) == !shown.starts_with("["), "IPv6 stands in brackets");
    const Address again = parse_address(is_ipv4(address) ? shown : shown.substr(1, shown.size() - 2), port);
    require(again == address, "an address is read as it is shown");
    require(std::hash<Address>{}(again) == std::hash<Address>{}(address), "equal addresses have one hash");
    require(!(is_multicast(address) && is_wildcard(address)), "no address is a group and every address");
}
