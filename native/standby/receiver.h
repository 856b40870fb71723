// The standby's side: a store that gets all that its server writes, and commits when the server has. One server is
// connected at a time, and is served by the thread that accepts connections.
#pragma once

#include <atomic>
#include <cstdint>
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
    std::optional<bool> to_note;             // the server has said so: note() is to be called with it
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
    void expect(const fabric::Token& token);  // that the server brings
    void note(bool in_sync);                  // the owner has noted it durably
    [[nodiscard]] ReceiverView view() const;

  private:
    void accept();
    void serve(fabric::Descriptor socket);
    void check_token(fabric::Channel& channel) const;
    [[nodiscard]] ReceiverSession::Says says();
    void committed(Applied commit);
    void ended(const std::string& why);

    ReceiverSettings settings_;
    store::Layout layout_;
    store::ChunkStore store_;
    std::optional<fabric::TlsContext> tls_;
    fabric::Lobby lobby_;
    std::uint16_t port_;
    fabric::Bell bell_;  // of the thread
    Applier applier_;
    std::atomic<bool> closing_{false};
    mutable std::mutex mutex_;  // guards what is below
    std::optional<fabric::Token> token_;
    std::optional<bool> noted_;  // to be told to the server
    fabric::Clock::time_point heard_at_ = fabric::Clock::now();
    ReceiverView view_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace luwu::standby
