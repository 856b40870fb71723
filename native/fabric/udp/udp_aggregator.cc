#include "fabric/udp/udp_aggregator.h"

#include <utility>

namespace luwu::fabric {

UdpAggregator::UdpAggregator(const Address& bound, const UdpSettings& udp)
    : socket_(std::in_place, bound, udp), bound_(socket_->bound()), tasks_("luwu-mean") {}

UdpAggregator::~UdpAggregator() {
    tasks_.stop();  // they use the loop
    loop_.reset();
}

void UdpAggregator::start(const Wiring& wiring, const Address& child, const Address& group, bool echo) {
    if (!socket_) throw Error(ErrorKind::order, "this aggregator's network has been started already");
    scale_ = 1.0F / static_cast<float>(wiring.workers);
    echo_ = echo;
    for (const WireBlock& block : wiring.blocks) {
        blocks_.emplace_back();
        blocks_.back().sum.resize(block.elements);
        blocks_.back().mean.resize(block.elements);
    }
    node_ = std::make_unique<ServerNode>(wiring, child, group, node_events());
    UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ = std::make_unique<NodeLoop>(std::move(socket), *node_, LoopSettings{"luwu-aggregate"});
    started_ = true;
    started_.notify_all();
}

NodeLoop& UdpAggregator::loop() {
    started_.wait(false);
    return *loop_;
}

ServerEvents UdpAggregator::node_events() {
    ServerEvents events;
    events.wanted = [this](std::uint64_t pull, std::uint32_t block) {
        blocks_[block].wanted.push_back(pull);
        tasks_.post([this, block] { advance(block); });
    };
    events.delivered = [this](std::uint32_t block) {
        blocks_[block].sending = false;
        tasks_.post([this, block] { advance(block); });
    };
    events.memory = [this](std::uint32_t block) -> float* {
        if (blocks_[block].collecting || blocks_[block].collected) return nullptr;
        blocks_[block].collecting = true;
        return blocks_[block].sum.data();
    };
    events.collected = [this](std::uint32_t block, float*) {
        blocks_[block].collecting = false;
        blocks_[block].collected = echo_;
        if (echo_) tasks_.post([this, block] { advance(block); });
    };
    events.broken = [](const std::string&) {};
    return events;
}

void UdpAggregator::advance(std::uint32_t number) {
    loop().call([&] {
        Block& block = blocks_[number];
        if (block.collected && !block.fresh && !block.sending) {
            block.sum.swap(block.mean);
            for (float& value : block.mean) value *= scale_;
            block.collected = false;
            block.fresh = true;
        }
        if (block.wanted.empty() || block.sending || (echo_ && !block.fresh)) return;
        block.fresh = false;
        block.sending = true;
        node_->offer(block.wanted.front(), reinterpret_cast<const std::byte*>(block.mean.data()));
        block.wanted.pop_front();
    });
}

std::optional<ServerCounts> UdpAggregator::counts() {
    if (!started_) return std::nullopt;
    return loop().call([this] { return node_->counts(); });
}

std::optional<UdpCounters> UdpAggregator::socket_counts() {
    if (!started_) return std::nullopt;
    return loop().counters();
}

}  // namespace luwu::fabric
