// A direction of the wire: a thread that takes frames from one interface, harms some, and sends them on the other.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "harm.h"
#include "interface.h"

namespace luwu::wire {

struct Counts {
    std::uint64_t frames = 0;  // that came in, with all the following
    std::uint64_t bytes = 0;
    std::uint64_t forwarded = 0;  // sent, duplicates too
    std::uint64_t dropped = 0;    // by a rule
    std::uint64_t duplicated = 0;
    std::uint64_t held = 0;
    std::uint64_t corrupted = 0;
    std::uint64_t refused = 0;           // by the kernel, as while the link is down
    std::uint64_t oversized = 0;         // larger than the link's MTU: an offload is on somewhere
    std::uint64_t without_checksum = 0;  // left to a device: the same
    std::uint64_t wrong_checksum = 0;    // on arrival here; counted only when asked to
    std::uint64_t missed = 0;            // came too fast and found the ring full
};

class Direction {
  public:
    struct Limits {
        std::uint64_t mtu = 1500;
        bool check_checksums = false;
    };

    Direction(Interface& from, Interface& to, Limits limits, Harm harm);
    ~Direction();
    Direction(const Direction&) = delete;
    Direction& operator=(const Direction&) = delete;

    void start();
    void stop();               // frames still held are lost
    void set_harm(Harm harm);  // for all frames not yet taken; frames held go at once
    [[nodiscard]] std::string counts_as_json();

  private:
    using Clock = std::chrono::steady_clock;
    using Bytes = std::vector<std::uint8_t>;

    struct Held {
        Bytes frame;
        std::uint64_t copies;
        std::size_t rule;
        std::uint64_t release_after;  // so many frames seen by the rule
    };
    using HeldByTime = std::multimap<Clock::time_point, Held>;  // by when each goes at the latest

    void run();
    std::uint32_t take_batch();
    void take(const Received& frame);
    void forward(std::span<const std::uint8_t> frame, std::uint64_t copies);
    void hold(std::span<const std::uint8_t> frame, const Verdict& verdict);
    void release(HeldByTime::iterator held);
    void release_counted();
    void release_until(Clock::time_point time);
    void send_batch();
    void wait_for_work();

    Interface& from_;
    Interface& to_;
    Limits limits_;
    int stop_ = -1;  // an event: ends the wait for frames
    std::atomic<bool> stopping_{false};
    std::thread thread_;

    std::mutex mutex_;  // over all that follows
    Harm harm_;
    Counts counts_;
    HeldByTime held_;
    std::vector<HeldByTime::iterator> counted_;  // those of held_ that may go before their time
    std::vector<Bytes> released_;                // live until the batch is sent
    std::vector<std::span<const std::uint8_t>> batch_;
};

}  // namespace luwu::wire
