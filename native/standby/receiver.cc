#include "standby/receiver.h"

#include <poll.h>
#include <pthread.h>

#include <utility>

#include "standby/standing.h"

namespace luwu::standby {

namespace {

using fabric::Broken;
using fabric::Clock;
using fabric::Drop;
using fabric::Dropped;
using fabric::FrameKind;

constexpr std::size_t kMostSilent = 16;
constexpr std::size_t kMostGreeting = 16;  // each costs a thread, for the time of a hello

}  // namespace

Receiver::Receiver(ReceiverSettings settings)
    : settings_(std::move(settings)),
      layout_(settings_.shape, static_cast<std::uint32_t>(settings_.folders.size())),
      store_(settings_.folders, layout_, settings_.uuid, settings_.mode),
      lobby_(fabric::listen_at(settings_.address, settings_.port), kMostSilent, settings_.tls ? 1 : fabric::kHelloBytes,
             settings_.timing.hello, settings_.timing.backoff),
      port_(fabric::bound_port(lobby_.listener())),
      crowd_(kMostGreeting),
      applier_(store_, [this] {
          const std::lock_guard lock(mutex_);
          if (served_) served_->bell.ring();
      }) {
    if (settings_.tls) tls_.emplace(*settings_.tls, fabric::TlsContext::Side::server);
    store_.make_room();
    view_.in_sync = settings_.in_sync;
    view_.has_values = store_.initialised();
    view_.step = store_.committed().step;
    thread_ = std::thread([this] { accept(); });
}

Receiver::~Receiver() {
    closing_ = true;
    {
        const std::lock_guard lock(mutex_);
        if (served_) served_->channel.abort();
    }
    bell_.stop();
    thread_.join();
}

void Receiver::expect(const fabric::Token& token) {
    const std::lock_guard lock(mutex_);
    token_ = token;
}

void Receiver::note(bool in_sync, std::uint64_t word) {
    {
        const std::lock_guard lock(mutex_);
        view_.in_sync = in_sync;
        if (view_.word == word) view_.to_note.reset();  // or the server has said something else since
        noted_ = word;
        if (served_) served_->bell.ring();
    }
}

ReceiverView Receiver::view() const {
    const std::lock_guard lock(mutex_);
    ReceiverView view = view_;
    view.alone_for = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - heard_at_);
    return view;
}

void Receiver::accept() {
    pthread_setname_np(pthread_self(), "luwu-standby");
    fabric::block_sigpipe();
    while (!closing_) {
        try {
            prepare_standing();
            look_into_lobby();
            end_greetings(false);
            if (const auto connection = next_admitted()) {
                serve(connection);
            } else {
                fabric::wait_for(lobby_.descriptor(), POLLIN, bell_, lobby_.deadline());
            }
        } catch (const Broken&) {  // time to look into the lobby, or to end
        }
    }
    end_greetings(true);
}

void Receiver::prepare_standing() {
    if (standing_) return;
    try {
        standing_ = encode_standing(store_);
    } catch (const Error&) {  // whoever connects is told
    }
}

void Receiver::look_into_lobby() {
    for (fabric::Lobby::Guest& guest : lobby_.look(Clock::now())) greet(std::move(guest));
}

void Receiver::greet(fabric::Lobby::Guest guest) {
    fabric::tune(guest.socket, settings_.timing);
    Greeting& greeting = greetings_.emplace_back();
    greeting.number = next_number_++;
    greeting.connection = std::make_shared<Connection>(std::move(guest.socket), tls_ ? &*tls_ : nullptr);
    if (const auto goes = crowd_.enter(greeting.number, guest.origin)) {
        for (Greeting& each : greetings_) {
            if (each.number == *goes) each.connection->channel.abort();
        }
    }
    greeting.thread = std::thread([this, &greeting] { greeted(greeting); });
}

void Receiver::greeted(Greeting& greeting) {
    fabric::block_sigpipe();
    fabric::Channel& channel = greeting.connection->channel;
    try {
        channel.limit(Clock::now() + settings_.timing.hello);
        check_token(channel);
        const std::lock_guard lock(mutex_);
        admitted_.push_back(greeting.connection);
    } catch (const Broken&) {  // a stranger
    }
    greeting.ended = true;
    bell_.ring();
}

// Those that are over, or all of them.
void Receiver::end_greetings(bool all) {
    for (auto greeting = greetings_.begin(); greeting != greetings_.end();) {
        if (all) greeting->connection->channel.abort();
        if (!all && !greeting->ended) {
            ++greeting;
            continue;
        }
        greeting->thread.join();
        crowd_.leave(greeting->number);
        greeting = greetings_.erase(greeting);
    }
}

std::shared_ptr<Receiver::Connection> Receiver::next_admitted() {
    const std::lock_guard lock(mutex_);
    if (admitted_.empty() || closing_) return nullptr;  // who closes ends the one that is served
    served_ = std::move(admitted_.front());
    admitted_.pop_front();
    return served_;
}

void Receiver::check_token(fabric::Channel& channel) const {
    channel.handshake();
    const fabric::Hello hello = fabric::decode_hello(fabric::receive_hello(channel));
    const std::lock_guard lock(mutex_);
    if (!token_ || !fabric::equal(*token_, hello.token)) throw Dropped(Drop::token);
}

void Receiver::serve(const std::shared_ptr<Connection>& connection) {
    fabric::Channel& channel = connection->channel;
    fabric::FrameWriter writer;
    try {
        if (!standing_) standing_ = encode_standing(store_);
        const std::vector<std::byte> standing = *std::exchange(standing_, std::nullopt);
        channel.limit(Clock::now() + settings_.timing.silence);
        writer.start({FrameKind::welcome, 0, 0, standing.size()}, standing);
        writer.write(channel);
        {
            const std::lock_guard lock(mutex_);
            view_.connected = true;
            view_.failure.clear();
            heard_at_ = Clock::now();
        }
        ReceiverSession session(store_, applier_, channel, settings_.timing.silence, says());
        session.serve();
    } catch (const Broken& broken) {
        ended(broken.what());
    } catch (const Error& error) {
        ended(error.what());
        try {
            const std::string text = std::string(error.what()).substr(0, fabric::kMostFailureBytes);
            channel.limit(Clock::now() + settings_.timing.farewell);
            writer.start({FrameKind::failure, static_cast<std::uint32_t>(error.kind()), 0, text.size()},
                         std::as_bytes(std::span(text)));
            writer.write(channel);
            channel.finish(Clock::now() + settings_.timing.farewell);
        } catch (const Broken&) {  // it is gone
        }
    }
    const std::lock_guard lock(mutex_);
    served_.reset();
}

ReceiverSession::Says Receiver::says() {
    return {.record =
                [this](std::uint64_t bytes) {
                    const std::lock_guard lock(mutex_);
                    view_.bytes_received += bytes;
                },
            .sync =
                [this](bool in_sync, std::uint64_t word) {
                    const std::lock_guard lock(mutex_);
                    view_.to_note = in_sync;
                    view_.word = word;
                },
            .committed = [this](Applied commit) { committed(std::move(commit)); },
            .noted =
                [this] {
                    const std::lock_guard lock(mutex_);
                    return std::exchange(noted_, std::nullopt);
                },
            .heard =
                [this] {
                    const std::lock_guard lock(mutex_);
                    heard_at_ = Clock::now();
                }};
}

void Receiver::committed(Applied commit) {
    const std::lock_guard lock(mutex_);
    view_.has_values = true;
    view_.step = commit.step;
    view_.note = std::move(commit.note);
}

// All that has arrived is applied: the server may be gone, and this store may have its last commit.
void Receiver::ended(const std::string& why) {
    if (auto commit = applier_.begin_again()) committed(std::move(*commit));
    const std::lock_guard lock(mutex_);
    view_.connected = false;
    view_.failure = why;
    noted_.reset();
}

}  // namespace luwu::standby
