#include "fabric/udp/node_loop.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <limits>
#include <utility>

#include "fabric/core/clock.h"

namespace luwu::fabric {

NodeLoop::NodeLoop(UdpSocket socket, Node& node, LoopSettings settings, OnFailure on_failure)
    : socket_(std::move(socket)),
      outbox_(socket_, settings.longest_send_wait),
      node_(node),
      settings_(std::move(settings)),
      on_failure_(std::move(on_failure)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (wake_.get() < 0) throw network_error("open an event descriptor for", socket_.bound(), errno);
    thread_ = std::thread([this] { run(); });
}

NodeLoop::~NodeLoop() {
    stopping_ = true;
    wake();
    thread_.join();
}

std::exception_ptr NodeLoop::failure() {
    const std::lock_guard hold(lock_);
    return failure_;
}

UdpStats NodeLoop::stats() {
    const std::lock_guard hold(lock_);
    UdpStats stats = stats_;
    stats.dropped_unread = socket_.kernel_drops();
    return stats;
}

void NodeLoop::wake() const {
    const std::uint64_t one = 1;
    const bool counted = write(wake_.get(), &one, sizeof one) > 0;  // a full counter wakes as well
    static_cast<void>(counted);
}

void NodeLoop::run() {
    pthread_setname_np(pthread_self(), settings_.name.substr(0, 15).c_str());
    // A thread's timers are otherwise late by up to 50 us more, so that the kernel can serve several at once.
    prctl(PR_SET_TIMERSLACK, 1UL);
    try {
        while (!stopping_) {
            if (const Time until = turn(); until != 0) sleep(until);
        }
    } catch (...) {
        const std::exception_ptr failure = std::current_exception();
        {
            const std::lock_guard hold(lock_);
            failure_ = failure;
        }
        if (on_failure_) on_failure_(failure);
    }
}

Time NodeLoop::turn() {
    const bool more = socket_.receive();
    const std::lock_guard hold(lock_);
    sleeping_ = false;
    const Time now = monotonic_ns();
    socket_.each([&](const Address& from, const Datagram& datagram) { node_.receive(from, datagram, now, outbox_); });
    if (const bool may = node_.may_be_marked(); may != std::exchange(may_be_marked_, may)) socket_.let_mark(may);
    const Time until = node_.advance(now, outbox_);
    outbox_.flush();  // before the lock is given back and before the next batch: bodies may lie in either's memory
    stats_ = socket_.stats();
    sleeping_ = !more && until > now;
    return sleeping_ ? until : 0;
}

void NodeLoop::sleep(Time until) {
    std::array<pollfd, 3> waited{{{wake_.get(), POLLIN, 0},
                                  {socket_.descriptor(), POLLIN, 0},
                                  {socket_.group_descriptor(), POLLIN, 0}}};  // -1 is passed over
    timespec timeout{};
    const Time now = monotonic_ns();
    if (until > now) {
        timeout = {static_cast<time_t>((until - now) / 1'000'000'000),
                   static_cast<long>((until - now) % 1'000'000'000)};
    }
    const bool for_ever = until == std::numeric_limits<Time>::max();
    ++socket_.stats().wait_calls;
    ppoll(waited.data(), waited.size(), for_ever ? nullptr : &timeout, nullptr);
    if ((waited[0].revents & POLLIN) == 0) return;
    std::uint64_t calls = 0;
    const bool read_them = read(wake_.get(), &calls, sizeof calls) > 0;
    static_cast<void>(read_them);
}

}  // namespace luwu::fabric
