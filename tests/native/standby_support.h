// A server with a standby, both in one process, and two owners that note what they are asked to.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "commit_support.h"
#include "standby/receiver.h"
#include "standby/sender.h"

namespace luwu::test {

inline constexpr fabric::Timing kTiming{.hello = std::chrono::milliseconds(5000),
                                        .silence = std::chrono::milliseconds(10000),
                                        .reconnect = std::chrono::milliseconds(0),
                                        .backoff = std::chrono::milliseconds(10),
                                        .longest_backoff = std::chrono::milliseconds(100),
                                        .farewell = std::chrono::milliseconds(1000)};
inline constexpr fabric::Token kToken{std::byte{7}};

inline std::unique_ptr<standby::Receiver> make_standby(const Folders& folders, store::OpenMode mode,
                                                       bool in_sync = false) {
    auto receiver = std::make_unique<standby::Receiver>(standby::ReceiverSettings{
        .folders = folders,
        .uuid = kUuid,
        .mode = mode,
        .shape = small_shape(kFloat),
        .address = "127.0.0.1",
        .port = 0,
        .timing = kTiming,
        .tls = {},
        .in_sync = in_sync,
    });
    receiver->expect(kToken);
    return receiver;
}

inline std::shared_ptr<standby::Sender> make_sender(bool required = false,
                                                    std::chrono::milliseconds patience = std::chrono::hours(1)) {
    return std::make_shared<standby::Sender>(standby::SenderSettings{
        .timing = kTiming, .answer = kTiming.hello, .tls = {}, .required = required, .patience = patience});
}

// A server with a replica.
struct ReplicatedServer {
    ReplicatedServer(const Folders& folders, store::OpenMode mode, std::shared_ptr<standby::Sender> sender_,
                     std::uint64_t memory = kPlenty)
        : sender(std::move(sender_)),
          rig(folders, kFloat, 1, memory, mode, store::make_io_engine, false, kernels::adamw, 2, {}, {},
              [this](pipeline::PipelineSettings& settings) { settings.replica = sender; }) {
        if (mode == store::OpenMode::create) rig.initialise();
    }

    std::shared_ptr<standby::Sender> sender;
    Rig rig;
};

// Plays the two owners: notes at once what they are asked to note.
class Owners {
  public:
    Owners(standby::Sender& sender, standby::Receiver& receiver)
        : thread_([this, &sender, &receiver] {
              while (!stops_) {
                  if (sender.view().asks_to_require) static_cast<void>(sender.require());
                  const auto view = receiver.view();
                  if (view.to_note) receiver.note(*view.to_note, view.word);
                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
              }
          }) {}
    ~Owners() {
        stops_ = true;
        thread_.join();
    }
    Owners(const Owners&) = delete;
    Owners& operator=(const Owners&) = delete;

  private:
    std::atomic<bool> stops_{false};
    std::thread thread_;
};

}  // namespace luwu::test
