// The server's side of its standby: sends what the pipeline writes, and holds each commit until the standby has it,
// too. What is owed is Sync's to say. A connection has a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/replica.h"
#include "standby/link.h"
#include "standby/sync.h"

namespace luwu::standby {

struct SenderSettings {
    fabric::Timing timing;
    std::chrono::milliseconds answer;  // the longest time to connect, and for the note that the standby is given up
    std::optional<fabric::TlsSettings> tls;
    bool required = false;               // a standby was in sync when the server ended
    std::chrono::milliseconds patience;  // the longest time that a commit waits for a standby that does not answer
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
    std::string lost_because;        // why the last connection ended; empty: a commit has been made since, or none has
};

// Every function may be called from any thread.
class Sender final : public pipeline::Replica {
  public:
    explicit Sender(SenderSettings settings);
    ~Sender() override;
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    // Connects to a standby. Throws Error(order) where one is connected, Error(server) where it is not reached.
    void connect(const Place& place);
    // Bytes that travel with each commit, at most kMostNoteBytes; throws Error(invalid).
    void set_note(std::vector<std::byte> note);
    // The owner has noted durably that no commit counts without the standby. False: it is not asked for any more.
    [[nodiscard]] bool require();
    // Gives the standby up: commits count without it. True: it knows, and will not take over. False: it was not
    // reached, and nothing is changed, unless `anyway`.
    [[nodiscard]] bool release(bool anyway);
    // The standby has taken over: every commit() throws from now on.
    void replace(const std::string& why);
    // Ends all waits, from now on, and the connection: what is not at the standby will not get there.
    void close();
    [[nodiscard]] SenderView view() const;

    void start() override;
    void send(std::unique_ptr<pipeline::IoTask> task, Then then) override;
    void give_back() override;
    void commit(const store::ChunkStore& store) override;
    void stop_waiting() override;

  private:
    void take(const fabric::Frame& frame);
    void lost(const std::string& why);
    void drop_link();                 // ends the connection, and waits for its thread
    std::uint64_t say(bool in_sync);  // with the lock; the number of this word
    void wait_for_answer(std::unique_lock<std::mutex>& lock);
    // With the lock: true while this connection is the present one.
    [[nodiscard]] bool is_there(const Link& link) const { return sync_.is_connected() && link_.get() == &link; }

    [[nodiscard]] std::optional<Error> ended() const;  // with the lock
    void go_on(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock);
    [[nodiscard]] bool look_at_standing(const store::ChunkStore& store, Link& link);
    void refuse(Link& link, const std::string& why);
    void copy(const store::ChunkStore& store, Link& link);
    void copy_chunk(const store::ChunkStore& store, std::uint32_t chunk, Link& link);
    void send_commit(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock);

    SenderSettings settings_;
    std::optional<fabric::TlsContext> tls_;
    std::mutex dialing_;        // one connect() or release() at a time
    mutable std::mutex mutex_;  // guards all below
    std::condition_variable changed_;
    Sync sync_;
    std::shared_ptr<Link> link_;  // stays after its connection has ended, until the next
    bool looked_ = false;         // at what the standby had when this connection began
    bool told_ = false;           // the standby, in this connection, that no commit counts without it
    std::uint64_t words_ = 0;     // told to the standby: in_sync and released, numbered from 1
    std::uint64_t noted_ = 0;     // number of the last of them that the standby has noted
    bool has_values_ = false;     // the standby has first values
    bool stopped_ = false;        // commit() waits no longer in this run
    bool closed_ = false;         // nor in any other
    bool gave_back_ = false;      // the run has ended
    std::optional<std::string> replaced_;
    std::optional<fabric::Clock::time_point> waits_since_;  // the commit that is under way
    fabric::Clock::duration unanswered_{0};                 // of that time, without an answer of the standby
    std::optional<std::uint64_t> awaited_;                  // the step whose commit the standby is to acknowledge
    std::uint64_t sent_before_ = 0;                         // bytes of records in earlier connections
    std::vector<std::byte> note_;
    SenderView view_;
};

inline constexpr std::size_t kMostNoteBytes = 1U << 20;

}  // namespace luwu::standby
