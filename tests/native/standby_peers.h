// Plays the other side of a server, and of its standby: sends what a test wants.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fabric/tcp/socket.h"
#include "standby/standing.h"
#include "standby_support.h"
#include "store/records.h"

namespace luwu::test {

using fabric::FrameKind;

// A chunk's record of the last commit: parameters, then states.
inline store::AlignedBuffer record_of(const store::ChunkStore& store, std::uint32_t chunk) {
    const store::ChunkPlace& place = store.layout().chunks()[chunk];
    store::AlignedBuffer record(place.record_bytes());
    store::IoRequest request = store.records().read_record(place, store.committed().counts[place.block], record.data(),
                                                           record.data() + place.parameter_bytes);
    store::transfer_now(request);
    REQUIRE(request.error == 0);
    return record;
}

// The payload of its frame.
inline std::vector<std::byte> commit_of(const store::ChunkStore& store, std::byte note) {
    std::vector<std::byte> payload(store::commit_slot_bytes(store.layout()));
    store::encode_commit(store.committed(), store.layout(), kUuid, payload);
    payload.push_back(note);
    return payload;
}

// Sends what a test wants to a standby, of a store's last commit.
class FakeServer {
  public:
    FakeServer(const Folders& folders, const standby::Receiver& standby)
        : store_(folders, layout_of(folders), kUuid, store::OpenMode::read_only),
          link_({"127.0.0.1", standby.port(), kToken}, nullptr, kTiming, kTiming.hello) {
        link_.start({.frame =
                         [this](const fabric::Frame& frame) {
                             const std::lock_guard lock(mutex_);
                             heard_.insert(frame.kind);
                             changed_.notify_all();
                         },
                     .ended =
                         [this](const std::string& why) {
                             const std::lock_guard lock(mutex_);
                             ended_ = why;
                             changed_.notify_all();
                         }});
    }
    ~FakeServer() { link_.stop(); }
    FakeServer(const FakeServer&) = delete;
    FakeServer& operator=(const FakeServer&) = delete;

    [[nodiscard]] std::uint32_t chunks() const { return static_cast<std::uint32_t>(store_.layout().chunks().size()); }
    [[nodiscard]] const store::ChunkPlace& place(std::uint32_t chunk) const { return store_.layout().chunks()[chunk]; }

    // `change` gets the record's parameters and its header, which is sealed again, unless its version is 0.
    void send_record(std::uint32_t chunk, const std::function<void(std::byte*, store::ChunkHeader&)>& change = {}) {
        const store::ChunkPlace& where = place(chunk);
        const std::uint64_t count = store_.committed().counts[where.block];
        auto record = std::make_shared<store::AlignedBuffer>(record_of(store_, chunk));
        std::byte* states = record->data() + where.parameter_bytes;
        if (change) {
            store::ChunkHeader header = store::load_chunk_header(states);
            change(record->data(), header);
            if (header.version != 0) store::seal(header);
            std::memcpy(states, &header, sizeof header);
        }
        post({FrameKind::record_parameters, chunk, count, where.parameter_bytes}, record->data(), record);
        post({FrameKind::record_states, chunk, count, where.state_bytes()}, states, record);
    }

    void send_commit(std::byte note = {}) {
        auto payload = std::make_shared<std::vector<std::byte>>(commit_of(store_, note));
        post({FrameKind::commit, 0, store_.committed().step, payload->size()}, payload->data(), payload);
    }

    void send_word(FrameKind kind) { post({kind, 0, ++words_, 0}, nullptr, nullptr); }

    // Ends the connection once all that was posted is out, whether it was read or not.
    void end() {
        while (!link_.wait_for_room(1, kTiming.hello)) {
        }
        link_.stop();
    }

    void await(FrameKind kind) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return heard_.contains(kind) || ended_; });
        INFO(ended_.value_or(""));
        CHECK(heard_.contains(kind));
    }

    [[nodiscard]] std::string why_it_ended() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ended_.has_value(); });
        return *ended_;
    }

  private:
    std::uint64_t words_ = 0;
    void post(const fabric::Frame& frame, const std::byte* payload, std::shared_ptr<void> memory) {
        link_.post({frame, {payload, frame.bytes}, [memory = std::move(memory)] {}});
    }

    store::ChunkStore store_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<FrameKind> heard_;
    std::optional<std::string> ended_;
    standby::Link link_;
};

// Plays a standby that stands somewhere, and reads no more until it is told to; if it `notes` it first reads and notes
// one word.
class FakeStandby {
  public:
    // `more` follows the welcome.
    explicit FakeStandby(std::vector<std::byte> standing, std::vector<std::byte> more = {}, bool notes = false)
        : standing_(std::move(standing)), more_(std::move(more)), notes_(notes) {
        thread_ = std::thread([this] { serve(); });
    }
    ~FakeStandby() { thread_.join(); }
    FakeStandby(const FakeStandby&) = delete;
    FakeStandby& operator=(const FakeStandby&) = delete;

    [[nodiscard]] standby::Place place() const { return {"127.0.0.1", fabric::bound_port(listener_), kToken}; }
    void read_on() { reads_.set_value(); }
    // Kinds of the frames that came; call when the connection has ended.
    [[nodiscard]] std::vector<FrameKind> came() {
        ended_.get_future().wait();
        return came_;
    }

  private:
    void serve() {
        fabric::Bell bell;
        try {
            fabric::wait_for(listener_.get(), POLLIN, bell, fabric::Clock::time_point::max());
            fabric::Channel channel(
                fabric::Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)), bell,
                nullptr, "");
            std::array<std::byte, fabric::kHelloBytes> hello{};
            for (std::size_t came = 0; came < hello.size();) {
                came += channel.read_some(std::span(hello).subspan(came));
                if (came < hello.size()) channel.wait(false);
            }
            fabric::FrameWriter writer;
            writer.start({FrameKind::welcome, 0, 0, standing_.size()}, standing_);
            writer.write(channel);
            while (!more_.empty())
                more_.erase(more_.begin(),
                            more_.begin() + static_cast<std::ptrdiff_t>(channel.write_some(more_, false)));
            fabric::FrameReader reader;
            if (!notes_) reads_.get_future().wait();
            while (true) {
                std::optional<fabric::Frame> frame;
                while (!(frame = reader.read_header(channel))) channel.wait(false);
                came_.push_back(frame->kind);
                if (frame->kind == FrameKind::in_sync) {
                    writer.start({FrameKind::noted, 0, frame->sequence, 0}, {});
                    writer.write(channel);
                    if (std::exchange(notes_, false)) reads_.get_future().wait();
                }
                std::vector<std::byte> payload(frame->bytes);
                while (!payload.empty() && !reader.read_payload(channel, payload)) channel.wait(false);
                if (frame->kind == FrameKind::failure) break;
                if (frame->kind != FrameKind::commit) continue;
                writer.start({FrameKind::committed, 0, frame->sequence, 0}, {});
                writer.write(channel);
            }
        } catch (const fabric::Broken&) {  // the server has closed the connection
        }
        ended_.set_value();
    }

    fabric::Descriptor listener_ = fabric::listen_at("127.0.0.1", 0);
    std::vector<std::byte> standing_;
    std::vector<std::byte> more_;
    bool notes_;
    std::vector<FrameKind> came_;
    std::promise<void> reads_;
    std::promise<void> ended_;
    std::thread thread_;
};

// A record that no socket has room for.
inline std::unique_ptr<pipeline::IoTask> large_record(std::vector<std::byte>& memory) {
    auto task = std::make_unique<pipeline::IoTask>();
    task->request.parts[0] = {memory.data(), memory.size() / 2};
    task->request.parts[1] = {memory.data() + memory.size() / 2, memory.size() / 2};
    return task;
}

// Folders of a server's store at its first step, and of a standby's.
struct Two {
    Two() : own{scratch.folder("own")}, other{scratch.folder("other")} { train(own, 1, 1, store::OpenMode::create); }

    Scratch scratch;
    Folders own;
    Folders other;
};

}  // namespace luwu::test
