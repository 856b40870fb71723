// The frames of a server's connection to its standby, from the welcome on.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "fabric/tcp/frames.h"
#include "standby/applier.h"

namespace luwu::standby {

class ReceiverSession {
  public:
    // Functions that take what the server says, and tell what to answer. They are called in the session's thread.
    struct Says {
        std::function<void(std::uint64_t bytes)> record;
        std::function<void(bool in_sync, std::uint64_t word)> sync;  // in_sync or released
        std::function<void(Applied commit)> committed;
        std::function<std::optional<std::uint64_t>()> noted;  // the word that the owner has noted since the last call
        std::function<void()> heard;
    };

    ReceiverSession(const store::ChunkStore& store, Applier& applier, fabric::Channel& channel,
                    std::chrono::milliseconds silence, Says says);
    ~ReceiverSession();
    ReceiverSession(const ReceiverSession&) = delete;
    ReceiverSession& operator=(const ReceiverSession&) = delete;

    // Serves until the connection ends: returns by an exception alone, Broken or Error.
    void serve();

  private:
    [[nodiscard]] bool read();   // true: something came
    [[nodiscard]] bool write();  // true: a frame went out
    void answer();               // what has been done since
    [[nodiscard]] bool has_room();
    void take(const fabric::Frame& frame);
    void take_payload(const fabric::Frame& frame);
    void expect(const fabric::Frame& frame, std::uint64_t least, std::uint64_t most);
    [[nodiscard]] const store::ChunkPlace& place_of(const fabric::Frame& frame) const;

    const store::ChunkStore& store_;
    Applier& applier_;
    fabric::Channel& channel_;
    std::chrono::milliseconds silence_;
    Says says_;
    fabric::FrameReader reader_;
    fabric::FrameWriter writer_;
    std::deque<fabric::Frame> outbox_;
    bool writing_ = false;
    std::optional<fabric::Frame> frame_;  // whose payload comes in
    std::span<std::byte> into_;
    std::vector<std::byte> payload_;              // of a frame that is no record
    std::optional<store::AlignedBuffer> buffer_;  // that a record arrives in
    std::optional<fabric::Frame> parameters_;     // that are there, and whose states are to come
    bool commits_ = false;                        // a commit is under way
};

}  // namespace luwu::standby
