// A WorkerNode over UDP, which tells whoever pulled or pushed when that is done.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fabric/protocol/worker_node.h"
#include "fabric/udp/node_loop.h"
#include "fabric/udp/task_queue.h"
#include "store/error.h"

namespace luwu::fabric {

class UdpPort {
  public:
    using Done = std::function<void(bool ok)>;
    struct Pull {
        std::uint32_t block = 0;
        std::span<std::byte> into;
        Done done;
    };
    struct Events {
        std::function<void(const Error&)> failed;
        // With the lock held: a new epoch began. The pulls are the caller's again, with what waits for them; pushes are
        // done, and went nowhere.
        std::function<void(std::deque<Pull> pulls)> interrupted;
    };

    UdpPort(UdpSocket socket, Events events);
    ~UdpPort() { stop(); }
    UdpPort(const UdpPort&) = delete;
    UdpPort& operator=(const UdpPort&) = delete;

    [[nodiscard]] Address bound() const { return bound_; }
    // Once, when the tree is known. `group`: a multicast group that parameters come from, if known.
    void start(const Wiring& wiring, const Address& parent, std::uint16_t child, const Address& group);
    // Then nothing writes to memory that was pulled into any more, and nothing else may be called.
    void stop();
    [[nodiscard]] bool started() const { return started_; }
    // Runs f() with the lock held; only in there may the next four be called.
    template <class Function>
    auto call(Function&& f) {
        return loop_->call(std::forward<Function>(f));
    }
    void pull(Pull pull);
    void push(std::uint32_t block, const std::byte* gradient, std::vector<std::uint8_t> exponents, Done done);
    void enter_epoch(std::uint32_t epoch) { node_->enter_epoch(epoch); }
    [[nodiscard]] std::uint32_t epoch() const { return node_->epoch(); }
    void post(std::function<void()> task) { tasks_.post(std::move(task)); }  // where `done` is called, too

    [[nodiscard]] std::optional<WorkerNodeStats> node_stats();
    [[nodiscard]] std::optional<UdpStats> socket_stats();

  private:
    [[nodiscard]] WorkerEvents node_events();

    Events events_;
    std::optional<UdpSocket> socket_;  // until the network starts
    Address bound_;
    std::unique_ptr<WorkerNode> node_;
    std::deque<Pull> pulls_;
    std::deque<Done> pushes_;
    TaskQueue tasks_;
    std::atomic<bool> started_{false};  // other threads look at it before they use the loop
    std::unique_ptr<NodeLoop> loop_;    // last: it uses all of the above
};

// The exponents of a whole block's gradient.
[[nodiscard]] std::vector<std::uint8_t> exponents_of(const std::byte* gradient, kernels::Dtype dtype,
                                                     std::uint64_t elements);
// Failure of a loop, as an Error.
[[nodiscard]] Error error_of(const std::exception_ptr& failure);

}  // namespace luwu::fabric
