// The server of a job whose workers come over UDP, through switches that make them look like one. What is no part of a
// training step goes over a TcpServer beside it: first values, and pulls of single workers.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "fabric/core/gradient_buffers.h"
#include "fabric/protocol/server_node.h"
#include "fabric/tcp/tcp_server.h"
#include "fabric/udp/node_loop.h"
#include "fabric/udp/task_queue.h"

namespace luwu::fabric {

class UdpServer {
  public:
    // `server` is as for any transport, `workers` being those of the job. Throws Error.
    UdpServer(ServerSettings server, const TcpSettings& tcp, const Address& bound, const UdpSettings& udp);
    ~UdpServer();
    UdpServer(const UdpServer&) = delete;
    UdpServer& operator=(const UdpServer&) = delete;

    [[nodiscard]] TcpServer& side() { return side_; }
    [[nodiscard]] const TcpServer& side() const { return side_; }
    [[nodiscard]] Address bound() const { return bound_; }  // of UDP
    // Starts the network when the tree is known; once. The wiring's blocks and workers are filled in here.
    void start(Wiring wiring, const Address& child, const Address& group);

    // As TcpServer has both. After a loss packets that are under way are dropped, because another worker at the place
    // would not complete their sums.
    void allow_worker(std::uint32_t rank, const Token& token);
    std::optional<std::uint64_t> lose_worker(std::uint32_t rank);
    // The answer is for the worker's UdpWorker::begin_step().
    struct Begun {
        bool given_up;        // another worker wants the step rolled back already
        std::uint32_t epoch;  // of the packets of this step, or an older one of a step that was given up
        std::uint64_t ended;  // see Pipeline::Begun
    };
    Begun begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                const pipeline::GradientSettings& gradient = {});
    void vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes);
    [[nodiscard]] std::optional<pipeline::Outcome> wait_for_end(std::uint32_t worker,
                                                                std::chrono::milliseconds at_most);
    void leave(std::uint32_t worker);
    [[nodiscard]] std::optional<ServerNodeStats> node_stats();
    [[nodiscard]] std::optional<UdpStats> socket_stats();

  private:
    [[nodiscard]] NodeLoop& loop();  // for tasks, which only a loop causes
    [[nodiscard]] ParameterServer& core() { return side_.core(); }
    [[nodiscard]] ServerEvents node_events();
    [[nodiscard]] ServerSettings one_stream(ServerSettings settings);
    void offer(std::uint32_t epoch, std::uint64_t pull, std::uint32_t block, pipeline::Outcome outcome);
    void push(std::uint32_t epoch, std::uint32_t block, std::uint32_t place);
    void drop_packets();
    void begin_epoch();

    std::unique_ptr<GradientBuffers> buffers_;  // before the pipeline, which reads from them until it ends
    TaskQueue tasks_;  // before the pipeline, which posts to it until it ends; the destructor stops it first
    TcpServer side_;
    std::optional<UdpSocket> socket_;  // until the network starts
    Address bound_;
    std::deque<std::uint32_t> collecting_;  // places in buffers_, in the node's order; the node's lock guards it
    std::atomic<std::uint32_t> epoch_{0};
    std::mutex losing_;  // no step begins between the end of an epoch and the loss that it is for
    std::unique_ptr<ServerNode> node_;
    std::unique_ptr<NodeLoop> loop_;
    std::atomic<bool> started_{false};  // the loop is there; its first packets may come before
};

}  // namespace luwu::fabric
