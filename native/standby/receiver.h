// The standby's side: a store that gets all that its server writes, and commits when the server has. One server is
// connected at a time, and is served by the thread that accepts connections. Who has not brought the token yet has a
// thread of its own, so that a stranger keeps nobody out.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/tcp/frames.h"
#include "fabric/tcp/lobby.h"
#include "standby/applier.h"
#include "standby/receiver_session.h"
#include "store/chunk_store.h"

namespace luwu::standby {

struct ReceiverSettings {
    std::vector<std::string> folders;
    store::Uuid uuid{};
    store::OpenMode mode = store::OpenMode::open;
    store::StoreShape shape;
    std::string address;
    std::uint16_t port = 0;  // 0: the kernel chooses
    fabric::Timing timing;
    std::optional<fabric::TlsSettings> tls;
    bool in_sync = false;  // noted before
};

struct ReceiverView {
    bool connected = false;
    std::chrono::milliseconds alone_for{0};  // since the server was heard last, or since the start
    bool in_sync = false;                    // no commit of the server counts without this store
    std::optional<bool> to_note;             // the server has said so: note() is to be called with it and `word`
    std::uint64_t word = 0;
    bool has_values = false;
    std::uint64_t step = 0;
    std::uint64_t bytes_received = 0;  // of records
    std::vector<std::byte> note;       // that came with the last commit
    std::string failure;               // why the last connection ended; empty: none has
};

// Every function may be called from any thread.
class Receiver {
  public:
    explicit Receiver(ReceiverSettings settings);  // throws Error, as the store does and as listen_at()
    ~Receiver();
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;

    [[nodiscard]] std::uint16_t port() const { return port_; }
    [[nodiscard]] const std::vector<std::string>& findings() const { return store_.findings(); }
    void expect(const fabric::Token& token);      // that the server brings
    void note(bool in_sync, std::uint64_t word);  // the owner has noted it durably
    [[nodiscard]] ReceiverView view() const;

  private:
    struct Connection {
        Connection(fabric::Descriptor socket, const fabric::TlsContext* tls)
            : channel(std::move(socket), bell, tls, "") {}
        fabric::Bell bell;
        fabric::Channel channel;
    };
    struct Greeting {
        std::uint64_t number;
        std::shared_ptr<Connection> connection;
        std::atomic<bool> ended{false};
        std::thread thread;
    };

    void accept();
    void look_into_lobby();
    void prepare_standing();
    void greet(fabric::Lobby::Guest guest);
    void greeted(Greeting& greeting);
    void end_greetings(bool all);
    [[nodiscard]] std::shared_ptr<Connection> next_admitted();
    void check_token(fabric::Channel& channel) const;  // throws Broken where the other side does not bring it
    void serve(const std::shared_ptr<Connection>& connection);
    [[nodiscard]] ReceiverSession::Says says();
    void committed(Applied commit);
    void ended(const std::string& why);

    ReceiverSettings settings_;
    store::Layout layout_;
    store::ChunkStore store_;
    std::optional<fabric::TlsContext> tls_;
    fabric::Lobby lobby_;
    std::uint16_t port_;
    fabric::Bell bell_;  // of the thread, while nobody is connected
    fabric::Crowd crowd_;
    std::uint64_t next_number_ = 1;
    std::list<Greeting> greetings_;
    std::optional<std::vector<std::byte>> standing_;  // made while nobody is connected: it reads every chunk's header
    std::atomic<bool> closing_{false};
    mutable std::mutex mutex_;  // guards what is below
    std::optional<fabric::Token> token_;
    std::optional<std::uint64_t> noted_;  // the word; to be told to the server
    std::deque<std::shared_ptr<Connection>> admitted_;
    std::shared_ptr<Connection> served_;  // null: nobody is connected
    fabric::Clock::time_point heard_at_ = fabric::Clock::now();
    ReceiverView view_;
    Applier applier_;     // its thread uses what is above
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::standby
