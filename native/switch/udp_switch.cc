#include "switch/udp_switch.h"

#include <utility>

namespace luwu::fabric {

UdpSwitch::UdpSwitch(const Address& bound, const UdpSettings& settings)
    : settings_(settings), socket_(std::in_place, bound, settings) {
    bound_ = socket_->bound();
}

void UdpSwitch::start(const Wiring& wiring, const Address& parent, std::uint16_t child,
                      const std::vector<Address>& children) {
    auto node = std::make_unique<SwitchNode>(wiring, parent, child, children);
    stop();
    node_ = std::move(node);
    UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ = std::make_unique<NodeLoop>(std::move(socket), *node_, LoopSettings{"luwu-switch"});
}

void UdpSwitch::stop() {
    loop_.reset();
    node_.reset();
    if (!socket_) socket_.emplace(bound_, settings_);
}

std::optional<SwitchCounts> UdpSwitch::counts() {
    if (loop_ == nullptr) return std::nullopt;
    return loop_->call([this] { return node_->counts(); });
}

std::optional<UdpCounters> UdpSwitch::socket_counts() {
    if (loop_ == nullptr) return std::nullopt;
    return loop_->counters();
}

std::exception_ptr UdpSwitch::failure() { return loop_ == nullptr ? nullptr : loop_->failure(); }

}  // namespace luwu::fabric
