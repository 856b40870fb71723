// The server's connection to its standby: sends one message after the other, in a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fabric/tcp/frames.h"

namespace luwu::standby {

inline constexpr int kBeats = 4;  // signs of life of each side, within the time of silence

struct Message {
    fabric::Frame frame;
    std::span<const std::byte> payload;  // in place until `sent`
    std::function<void()> sent;          // or given up; called without a lock, perhaps in the thread that posts
};

struct Place {
    std::string address;
    std::uint16_t port = 0;
    fabric::Token token{};
};

// Every function may be called from any thread.
class Link {
  public:
    struct Hears {
        std::function<void(const fabric::Frame&)> frame;  // may throw Broken
        std::function<void(const std::string&)> ended;    // once, before what is left is given up
    };

    // Connects, says hello, and receives what the standby has, within a time. Throws Broken.
    Link(const Place& place, const fabric::TlsContext* tls, const fabric::Timing& timing,
         std::chrono::milliseconds at_most);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    // As the standby has sent it at the begin; once.
    [[nodiscard]] std::vector<std::byte> take_standing() { return std::move(standing_); }
    void start(Hears hears);
    void stop();  // ends the connection, and waits for the thread
    void post(Message message);
    // Gives up the records that have not begun to go out. Returns the number of their frames, once no record's memory
    // is used any more.
    std::size_t drop_records();
    // True once fewer messages than this wait, or the connection has ended; false: that takes longer.
    [[nodiscard]] bool wait_for_room(std::size_t most, std::chrono::milliseconds at_most);
    [[nodiscard]] std::uint64_t record_bytes() const;  // that went out

  private:
    void run();
    void exchange();
    [[noreturn]] void take_failure(const fabric::Frame& frame, fabric::FrameReader& reader);
    [[nodiscard]] bool start_next(fabric::FrameWriter& writer);
    void sent();
    void give_up_all();

    fabric::Timing timing_;
    fabric::Bell bell_;
    std::optional<fabric::Channel> channel_;
    std::vector<std::byte> standing_;
    Hears hears_;
    mutable std::mutex mutex_;  // guards what is below
    std::condition_variable changed_;
    std::deque<Message> queue_;
    bool under_way_ = false;  // the first of them
    bool busy_ = false;       // a `sent` is called
    bool ended_ = false;
    std::uint64_t record_bytes_ = 0;
    std::thread thread_;
};

}  // namespace luwu::standby
