// A connection of a worker to a TcpServer, with a thread of its own; each worker has two. Requests are sent as soon as
// the connection has room, however many are without an answer; after a break those are sent again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fabric/tcp/frames.h"
#include "store/error.h"

namespace luwu::fabric {

struct TcpLinkSettings {
    std::string address;
    std::uint16_t port = 0;
    std::uint64_t job = 0;
    std::uint32_t rank = 0;
    std::uint32_t workers = 1;
    Token token{};
    std::optional<TlsSettings> tls;
    Timing timing;
};

// The memory stays in place until `done`, which is called in a thread of the link; false: the link has failed.
struct TcpRequest {
    FrameKind kind = FrameKind::pull;
    std::uint32_t block = 0;
    std::span<const std::byte> payload;  // of push and initialise
    std::span<std::byte> into;           // of pull and read
    std::function<void(bool)> done;
};

struct TcpLinkStats {
    std::uint64_t bytes_received = 0;  // payloads, answered
    std::uint64_t bytes_sent = 0;
    std::uint64_t reconnects = 0;  // of both connections
};

// A connection of the two.
class TcpLane {
  public:
    // `on_failure` is called once, in the lane's thread, when the lane gives up.
    TcpLane(const TcpLinkSettings& settings, const TlsContext* tls, Stream stream, std::uint64_t incarnation,
            std::function<void(const Error&)> on_failure);
    ~TcpLane() { stop(); }
    TcpLane(const TcpLane&) = delete;
    TcpLane& operator=(const TcpLane&) = delete;

    void start();
    void post(TcpRequest request);
    void ask_to_stop();                                             // any thread, also from `done` and `on_failure`
    void stop();                                                    // waits for the lane's thread
    [[nodiscard]] bool wait_connected(Clock::time_point deadline);  // true also when the lane has ended
    [[nodiscard]] TcpLinkStats stats() const;
    [[nodiscard]] std::chrono::milliseconds broken_for() const;  // time since the connection broke; 0: it is there
    [[nodiscard]] std::chrono::milliseconds silent_for()
        const;  // without an acknowledgement; 0: it is not, or is broken

  private:
    void run();
    [[nodiscard]] std::shared_ptr<Channel> connect();
    [[nodiscard]] std::shared_ptr<Channel> dial();
    void exchange(Channel& channel);
    [[nodiscard]] bool has_connected() const;
    [[nodiscard]] bool start_next(FrameWriter& writer, std::size_t& sent);
    [[nodiscard]] std::span<std::byte> place_of(const Frame& answer);
    [[noreturn]] void take_failure(Channel& channel, FrameReader& reader, const Frame& frame) const;
    [[nodiscard]] bool lasts(Clock::time_point now) const;
    void lost();
    void answered();
    void back_off(std::chrono::milliseconds pause);
    void end(bool failed, const Error& error);
    [[nodiscard]] std::string server() const { return name_of(settings_.address, settings_.port); }

    const TcpLinkSettings& settings_;
    const TlsContext* tls_;
    Stream stream_;
    std::uint64_t incarnation_;
    std::function<void(const Error&)> on_failure_;
    Bell bell_;
    // The lane's thread alone uses these:
    std::optional<Clock::time_point> lost_since_;  // nothing: all is well
    mutable std::mutex mutex_;                     // for what is below
    std::condition_variable changed_;
    std::deque<TcpRequest> requests_;   // without an answer, in order
    std::uint64_t first_sequence_ = 1;  // of requests_.front()
    bool connected_ = false;            // has been, once
    bool ended_ = false;
    std::optional<Clock::time_point> connected_at_;  // nothing: it is not connected
    std::weak_ptr<const Channel> channel_;           // the last one
    std::optional<Clock::time_point> broken_since_;  // nothing: it has never been, or was answered since
    TcpLinkStats stats_;
    std::thread thread_;
};

}  // namespace luwu::fabric
