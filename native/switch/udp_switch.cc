#include "switch/udp_switch.h"

#include <utility>

#include "fabric/core/address.h"
#include "switch/kernel_slots.h"
#include "switch/privileges.h"

namespace luwu::switching {

namespace {

// The smallest job, to learn whether the kernel takes the program before one has to be served.
void try_program() {
    fabric::Wiring wiring;
    wiring.payload_bytes = LUWU_PAYLOAD_STEP;
    wiring.window.fill(1);
    const fabric::Address nobody = fabric::parse_address("0.0.0.0", 0);
    const XdpProgram program(wiring, {nobody, nobody, 0, {nobody}});
}

// Large buffers in the kernel need CAP_NET_ADMIN.
fabric::UdpSocket open_socket(const fabric::Address& bound, const fabric::UdpSettings& settings) {
    const RaisedCapabilities raised;
    return fabric::UdpSocket(bound, settings);
}

}  // namespace

UdpSwitch::UdpSwitch(const fabric::Address& bound, const fabric::UdpSettings& settings,
                     const std::vector<std::string>& interfaces)
    : settings_(settings), socket_(open_socket(bound, settings)) {
    bound_ = socket_->bound();
    if (interfaces.empty()) return;
    if (const std::string missing = xdp_missing(); !missing.empty()) throw Error(ErrorKind::invalid, missing);
    ports_ = std::make_unique<XdpPorts>(interfaces);
    try_program();
    why_not_ = "no job";
}

std::unique_ptr<SlotTable> UdpSwitch::slots_in_kernel(const fabric::Wiring& wiring, const XdpPlace& place) {
    if (ports_ == nullptr) return nullptr;
    why_not_ = xdp_unfit(wiring, place);
    if (!why_not_.empty()) return nullptr;
    program_ = std::make_unique<XdpProgram>(wiring, place);
    return make_kernel_slots(*program_);
}

void UdpSwitch::start(const fabric::Wiring& wiring, const fabric::Address& parent, std::uint16_t child,
                      const std::vector<fabric::Address>& children) {
    check(wiring);
    const std::lock_guard lock(mutex_);
    end_job();
    fabric::Address own = is_wildcard(bound_) ? fabric::address_towards(parent) : bound_;
    own.value.sin6_port = bound_.value.sin6_port;
    const std::uint32_t interfaces_end = ports_ == nullptr ? 1 : ports_->numbers_end();
    auto slots = slots_in_kernel(wiring, {own, parent, child, children, interfaces_end});
    node_ = std::make_unique<SwitchNode>(wiring, parent, child, children, std::move(slots));
    fabric::UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ = std::make_unique<fabric::NodeLoop>(std::move(socket), *node_, fabric::LoopSettings{"luwu-switch"});
    if (program_ != nullptr) ports_->serve(*program_);
}

void UdpSwitch::stop() {
    const std::lock_guard lock(mutex_);
    end_job();
}

void UdpSwitch::end_job() {
    if (program_ != nullptr) {
        ports_->idle();
        why_not_ = "no job";
    }
    loop_.reset();
    node_.reset();
    program_.reset();
    if (!socket_) socket_.emplace(open_socket(bound_, settings_));
}

std::optional<SwitchNodeStats> UdpSwitch::node_stats() {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return std::nullopt;
    SwitchNodeStats stats = loop_->call([this] { return node_->stats(); });
    if (program_ == nullptr) return stats;
    const auto in_kernel = program_->stats();
    stats.packets_in += in_kernel[LUWU_XDP_PACKETS_IN];
    stats.packets_out += in_kernel[LUWU_XDP_PACKETS_OUT];
    stats.sums_sent += in_kernel[LUWU_XDP_SUMS_SENT] + in_kernel[LUWU_XDP_SUMS_AGAIN];
    stats.sums_sent_again += in_kernel[LUWU_XDP_SUMS_AGAIN];
    stats.drops[static_cast<std::size_t>(fabric::PacketDrop::duplicate)] += in_kernel[LUWU_XDP_DUPLICATES];
    return stats;
}

std::optional<fabric::UdpStats> UdpSwitch::socket_stats() {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return std::nullopt;
    return loop_->stats();
}

std::exception_ptr UdpSwitch::failure() {
    const std::lock_guard lock(mutex_);
    return loop_ == nullptr ? nullptr : loop_->failure();
}

void UdpSwitch::start_trace(std::uint64_t most_records) {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->call([&] { node_->start_trace(most_records); });
}

trace::Recorded UdpSwitch::stop_trace() {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return {};
    return loop_->call([this] { return node_->stop_trace(); });
}

std::optional<XdpStatus> UdpSwitch::xdp() const {
    const std::lock_guard lock(mutex_);
    if (ports_ == nullptr) return std::nullopt;
    XdpStatus status{ports_->modes(), why_not_};
    if (program_ != nullptr) status.stats = program_->stats();
    return status;
}

}  // namespace luwu::switching
