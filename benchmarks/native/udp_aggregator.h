// The network fabric without a store: every worker pushes fp32 blocks and pulls their means back. For measuring it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/protocol/server_node.h"
#include "fabric/udp/node_loop.h"
#include "fabric/udp/task_queue.h"

namespace luwu::bench {

class UdpAggregator {
  public:
    UdpAggregator(const fabric::Address& bound, const fabric::UdpSettings& udp);  // throws Error
    ~UdpAggregator();
    UdpAggregator(const UdpAggregator&) = delete;
    UdpAggregator& operator=(const UdpAggregator&) = delete;

    [[nodiscard]] fabric::Address bound() const { return bound_; }
    // Once. With `echo`, each pull of a block waits for its next push and brings the mean of that; without, pulls bring
    // whatever lies there, and pushes come to nothing.
    void start(const fabric::Wiring& wiring, const fabric::Address& child, const fabric::Address& group, bool echo);
    [[nodiscard]] std::optional<fabric::ServerNodeStats> node_stats();
    [[nodiscard]] std::optional<fabric::UdpStats> socket_stats();

  private:
    [[nodiscard]] fabric::NodeLoop& loop();  // for tasks, which only a loop causes
    struct Block {
        std::vector<float> sum;   // of the push that is collected
        std::vector<float> mean;  // what is pulled
        bool collecting = false;
        bool collected = false;  // the sum waits to become the mean
        bool fresh = false;      // the mean was not pulled yet
        bool sending = false;
        std::deque<std::uint64_t> wanted;  // pulls
    };
    [[nodiscard]] fabric::ServerEvents node_events();
    void advance(std::uint32_t block);

    float scale_ = 1.0F;
    bool echo_ = true;
    std::optional<fabric::UdpSocket> socket_;  // until the network starts
    fabric::Address bound_;
    std::vector<Block> blocks_;  // the loop's lock guards them
    std::unique_ptr<fabric::ServerNode> node_;
    fabric::TaskQueue tasks_;
    std::unique_ptr<fabric::NodeLoop> loop_;
    std::atomic<bool> started_{false};  // the loop is there; its first packets may come before
};

}  // namespace luwu::bench
