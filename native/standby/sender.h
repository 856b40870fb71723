// The server's side of its standby: sends what the pipeline writes, and holds each commit until the standby has it,
// too. What is owed is Sync's to say. A connection has a thread of its own.
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
#include "pipeline/replica.h"
#include "standby/sync.h"

namespace luwu::standby {

struct SenderSettings {
    fabric::Timing timing;
    std::optional<fabric::TlsSettings> tls;
    bool required = false;               // a standby was in sync when the server ended
    std::chrono::milliseconds patience;  // the longest time that a commit waits for a standby that is away
};

struct SenderView {
    bool connected = false;
    bool required = false;         // no commit counts without the standby
    bool asks_to_require = false;  // require() is to be called: the standby has a whole commit
    bool waits = false;            // a commit waits for the standby
    std::chrono::milliseconds waits_for{0};
    std::uint64_t step = 0;          // of the last commit that the standby has
    std::uint64_t bytes_sent = 0;    // of records
    std::uint64_t bytes_copied = 0;  // of them: because the standby had missed them
    std::string lost_because;        // empty: the connection is there, or never was
};

// Every function may be called from any thread.
class Sender final : public pipeline::Replica {
  public:
    explicit Sender(SenderSettings settings);
    ~Sender() override;
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    // Connects to a standby. Throws Error(order) where one is connected, Error(server) where it is not reached.
    void connect(const std::string& address, std::uint16_t port, const fabric::Token& token);
    // Bytes that travel with each commit, at most kMostNoteBytes; throws Error(invalid).
    void set_note(std::vector<std::byte> note);
    // The owner has noted durably that no commit counts without the standby. False: it is not asked for any more.
    [[nodiscard]] bool require();
    // Gives the standby up: commits count without it. True: it knows, and will not take over. False: it was not
    // reached, and nothing is changed, unless `anyway`.
    [[nodiscard]] bool release(bool anyway);
    // The standby has taken over: every commit() throws from now on.
    void replace(const std::string& why);
    [[nodiscard]] SenderView view() const;

    void start() override;
    void send(std::unique_ptr<pipeline::IoTask> task, Then then) override;
    void give_back() override;
    void commit(const store::ChunkStore& store) override;
    void stop_waiting() override;

  private:
    struct Message {
        fabric::Frame frame;
        std::span<const std::byte> payload;  // in place until `sent`
        std::function<void()> sent;          // or given up; called without the lock
    };
    struct Link {
        std::uint64_t number = 0;  // of this connection
        fabric::Bell bell;
        std::optional<fabric::Channel> channel;
        std::vector<std::byte> standing;  // of the standby, as it sent it
        std::thread thread;
    };

    [[nodiscard]] std::unique_ptr<Link> dial(const std::string& address, std::uint16_t port,
                                             const fabric::Token& token) const;
    void run(Link& link);
    void exchange(Link& link);
    [[nodiscard]] bool start_next(fabric::FrameWriter& writer);
    void take(const fabric::Frame& frame);
    void sent();
    void end(const std::string& why);
    void drop_link();                                      // ends the connection and its thread
    void enqueue(Message message);                         // with the lock
    void post(std::uint64_t connection, Message message);  // gives it up at once where that connection has ended
    // With the lock: true while this connection is the present one.
    [[nodiscard]] bool is_there(std::uint64_t connection) const {
        return sync_.is_connected() && connection == connection_;
    }

    [[nodiscard]] std::optional<Error> ended() const;  // with the lock
    void go_on(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock);
    [[nodiscard]] bool look_at_standing(const store::ChunkStore& store, std::uint64_t connection);
    void refuse(std::uint64_t connection, const std::string& why);
    void copy(const store::ChunkStore& store, std::uint64_t connection);
    void copy_chunk(const store::ChunkStore& store, std::uint32_t chunk, std::uint64_t connection);
    void send_commit(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock);

    SenderSettings settings_;
    std::optional<fabric::TlsContext> tls_;
    std::mutex dialing_;        // one connect() or release() at a time
    mutable std::mutex mutex_;  // guards all below
    std::condition_variable changed_;
    Sync sync_;
    std::unique_ptr<Link> link_;  // stays after its connection has ended, until the next
    std::deque<Message> queue_;   // the first may be under way
    bool under_way_ = false;
    bool stopped_ = false;          // commit() waits no longer
    bool gave_back_ = false;        // the run has ended
    std::uint64_t connection_ = 0;  // number of the present connection, or of the last
    bool told_in_sync_ = false;     // the standby, in this connection
    bool released_ = false;         // the standby knows that it is given up
    bool has_values_ = false;       // the standby has first values
    std::optional<std::string> replaced_;
    std::optional<fabric::Clock::time_point> waits_since_;  // the commit that is under way
    std::optional<fabric::Clock::time_point> away_since_;   // the standby, while that commit waits
    std::optional<std::uint64_t> awaited_;                  // the step whose commit the standby is to acknowledge
    std::vector<std::byte> note_;
    SenderView view_;
};

inline constexpr std::size_t kMostNoteBytes = 1U << 20;

}  // namespace luwu::standby
