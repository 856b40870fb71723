// Runs one node over UDP: a thread that waits for datagrams, the node's deadline or a call from another thread.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "fabric/protocol/node.h"
#include "fabric/udp/datagrams.h"
#include "fabric/udp/turn_lock.h"
#include "fabric/udp/udp_outbox.h"

namespace luwu::fabric {

struct LoopSettings {
    std::string name = "luwu-network";                       // of the thread; 15 characters are kept
    std::chrono::nanoseconds longest_send_wait{20'000'000};  // UdpOutbox
};

class NodeLoop {
  public:
    using OnFailure = std::function<void(std::exception_ptr)>;

    // The node must outlive the loop, and is the loop's from now on: others reach it through call(). It hears Time as
    // monotonic_ns() of fabric/core/clock.h. `on_failure` is called once, in the loop's thread and without the lock,
    // when the node or the socket threw; the loop has ended then, and call() still runs.
    NodeLoop(UdpSocket socket, Node& node, LoopSettings settings = {}, OnFailure on_failure = {});
    ~NodeLoop();  // ends the thread; a batch that is being worked on is finished and its datagrams are sent
    NodeLoop(const NodeLoop&) = delete;
    NodeLoop& operator=(const NodeLoop&) = delete;

    // Runs f() while the loop leaves the node alone, then has the node advance. It waits for at most the batch that the
    // loop works on, and for calls that came earlier. Not from the node itself. Returns what f returns.
    template <class Function>
    std::invoke_result_t<Function> call(Function&& f) {
        const std::lock_guard hold(lock_);
        const Waker after(*this);
        return std::forward<Function>(f)();
    }

    [[nodiscard]] const Address& bound() const { return socket_.bound(); }
    [[nodiscard]] std::exception_ptr failure();  // null: none
    [[nodiscard]] UdpStats stats();

  private:
    class Waker {
      public:
        explicit Waker(NodeLoop& loop) : loop_(loop) {}
        ~Waker() {
            if (std::exchange(loop_.sleeping_, false)) loop_.wake();
        }
        Waker(const Waker&) = delete;
        Waker& operator=(const Waker&) = delete;

      private:
        NodeLoop& loop_;
    };

    void run();
    // Handles one batch; returns the time until which the loop may sleep: 0, not at all.
    [[nodiscard]] Time turn();
    void sleep(Time until);
    void wake() const;

    UdpSocket socket_;  // received from without the lock
    UdpOutbox outbox_;
    Node& node_;
    LoopSettings settings_;
    OnFailure on_failure_;
    Descriptor wake_;  // an eventfd
    TurnLock lock_;
    bool may_be_marked_ = false;
    bool sleeping_ = false;  // or about to: a call must wake the loop
    UdpStats stats_;         // as of the last batch
    std::exception_ptr failure_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::fabric
