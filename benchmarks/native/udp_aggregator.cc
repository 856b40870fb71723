#include "udp_aggregator.h"

#include <utility>

namespace luwu::bench {

UdpAggregator::UdpAggregator(const fabric::Address& bound, const fabric::UdpSettings& udp)
    : socket_(std::in_place, bound, udp), bound_(socket_->bound()), tasks_("luwu-mean") {}

UdpAggregator::~UdpAggregator() {
    tasks_.stop();  // they use the loop
    loop_.reset();
}

void UdpAggregator::start(const fabric::Wiring& wiring, const fabric::Address& child, const fabric::Address& group,
                          bool echo) {
    if (!socket_) throw Error(ErrorKind::order, "this aggregator's network has been started already");
    scale_ = 1.0F / static_cast<float>(wiring.workers);
    echo_ = echo;
    for (const fabric::WireBlock& block : wiring.blocks) {
        blocks_.emplace_back();
        blocks_.back().sum.resize(block.elements);
        blocks_.back().mean.resize(block.elements);
    }
    node_ = std::make_unique<fabric::ServerNode>(wiring, child, group, node_events());
    fabric::UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ = std::make_unique<fabric::NodeLoop>(std::move(socket), *node_, fabric::LoopSettings{"luwu-aggregate"});
    started_ = true;
    started_.notify_all();
}

fabric::NodeLoop& UdpAggregator::loop() {
    started_.wait(false);
    return *loop_;
}

fabric::ServerEvents UdpAggregator::node_events() {
    fabric::ServerEvents events;
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

std::optional<fabric::ServerNodeStats> UdpAggregator::node_stats() {
    if (!started_) return std::nullopt;
    return loop().call([this] { return node_->stats(); });
}

std::optional<fabric::UdpStats> UdpAggregator::socket_stats() {
    if (!started_) return std::nullopt;
    return loop().stats();
}

}  // namespace luwu::bench
