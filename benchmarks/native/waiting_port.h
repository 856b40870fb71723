// A UdpPort for callers that wait, without a store: benchmarks drive the network with it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "fabric/udp/udp_port.h"

namespace luwu::bench {

// Each pull and push gives a ticket.
class WaitingPort {
  public:
    explicit WaitingPort(const fabric::Address& bound)
        : port_(fabric::UdpSocket(bound), {[](const Error&) {}, [](auto&&) {}}) {}
    fabric::UdpPort& port() { return port_; }

    std::size_t pull(std::uint32_t block, std::span<std::byte> into) {
        return ticket([&](fabric::UdpPort::Done done) { port_.pull({block, into, std::move(done)}); });
    }
    std::size_t push(std::uint32_t block, std::span<const std::byte> gradient) {
        auto exponents = fabric::exponents_of(gradient.data(), kernels::Dtype::float32, gradient.size() / 4);
        return ticket([&](fabric::UdpPort::Done done) {
            port_.push(block, gradient.data(), std::move(exponents), std::move(done));
        });
    }
    [[nodiscard]] bool wait(std::size_t ticket, std::chrono::milliseconds at_most) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, at_most, [&] { return done_.at(ticket); });
    }

  private:
    template <class Start>
    std::size_t ticket(const Start& start) {
        std::size_t number = 0;
        {
            const std::lock_guard lock(mutex_);
            number = done_.size();
            done_.push_back(false);
        }
        port_.call([&] {
            start([this, number](bool) {
                {
                    const std::lock_guard lock(mutex_);
                    done_[number] = true;
                }
                changed_.notify_all();
            });
        });
        return number;
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> done_;
    fabric::UdpPort port_;
};

}  // namespace luwu::bench
