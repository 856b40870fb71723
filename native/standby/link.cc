#include "standby/link.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace luwu::standby {

namespace {

using fabric::Broken;
using fabric::Clock;
using fabric::Dropped;
using fabric::Frame;
using fabric::FrameKind;

constexpr std::size_t kMostStandingBytes = 64U << 20;

bool is_record(FrameKind kind) { return kind == FrameKind::record_parameters || kind == FrameKind::record_states; }

std::vector<std::byte> read_bytes(fabric::Channel& channel, fabric::FrameReader& reader, std::uint64_t bytes,
                                  std::uint64_t most) {
    if (bytes > most) throw Dropped(fabric::Drop::oversized);
    std::vector<std::byte> payload(bytes);
    while (bytes > 0 && !reader.read_payload(channel, payload)) channel.wait(false);
    return payload;
}

std::string text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Link::Link(const Place& place, const fabric::TlsContext* tls, const fabric::Timing& timing,
           std::chrono::milliseconds at_most)
    : timing_(timing) {
    const auto deadline = Clock::now() + at_most;
    fabric::Descriptor socket = fabric::connect_to(place.address, place.port, bell_, deadline);
    fabric::tune(socket, timing);
    fabric::Channel& channel = channel_.emplace(std::move(socket), bell_, tls, place.address);
    channel.limit(deadline);
    channel.handshake();
    fabric::Hello hello;
    hello.token = place.token;
    fabric::send_hello(channel, hello);
    fabric::FrameReader reader;
    std::optional<Frame> frame;
    while (!(frame = reader.read_header(channel))) channel.wait(false);
    standing_ = read_bytes(channel, reader, frame->bytes, kMostStandingBytes);
    if (frame->kind == FrameKind::failure) throw Broken(text_of(standing_));
    if (frame->kind != FrameKind::welcome) throw Dropped(fabric::Drop::malformed);
    channel.limit(Clock::time_point::max());
}

Link::~Link() { stop(); }

void Link::start(Hears hears) {
    hears_ = std::move(hears);
    thread_ = std::thread([this] { run(); });
}

void Link::stop() {
    channel_->abort();
    if (thread_.joinable()) thread_.join();
}

void Link::post(Message message) {
    {
        const std::lock_guard lock(mutex_);
        if (!ended_) {
            queue_.push_back(std::move(message));
            return bell_.ring();
        }
    }
    message.sent();
}

// A frame that is under way is waited for, because its memory may go once this returns. A standby that got half of a
// record forgets that half.
std::size_t Link::drop_records() {
    std::deque<Message> dropped;
    std::unique_lock lock(mutex_);
    const auto first = queue_.begin() + (under_way_ ? 1 : 0);
    const auto stays = std::stable_partition(first, queue_.end(),
                                             [](const Message& message) { return !is_record(message.frame.kind); });
    std::move(stays, queue_.end(), std::back_inserter(dropped));
    queue_.erase(stays, queue_.end());
    lock.unlock();
    for (const Message& message : dropped) message.sent();
    lock.lock();
    changed_.wait(lock, [this] { return !busy_ && (!under_way_ || !is_record(queue_.front().frame.kind)); });
    return dropped.size();
}

bool Link::wait_for_room(std::size_t most, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [&] { return queue_.size() < most || ended_; });
}

std::uint64_t Link::record_bytes() const {
    const std::lock_guard lock(mutex_);
    return record_bytes_;
}

void Link::run() {
    pthread_setname_np(pthread_self(), "luwu-standby");
    fabric::block_sigpipe();
    std::string why;
    try {
        exchange();
    } catch (const std::exception& error) {
        why = error.what();
    }
    channel_->abort();
    hears_.ended(why);
    give_up_all();
}

void Link::exchange() {
    const auto beat = timing_.silence / kBeats;
    fabric::FrameWriter writer;
    fabric::FrameReader reader;
    bool writing = false;
    auto heard = Clock::now();
    auto spoke = heard;
    while (true) {
        const auto now = Clock::now();
        if (now - heard > timing_.silence) throw Broken("it says nothing any more");
        if (now - spoke > beat) {
            post({{FrameKind::alive, 0, 0, 0}, {}, [] {}});
            spoke = now;
        }
        if (!writing) writing = start_next(writer);
        const bool written = writing && writer.write_some(*channel_);
        if (written) {
            writing = false;
            sent();
        }
        const auto frame = reader.read_header(*channel_);
        if (frame) {
            heard = Clock::now();
            if (frame->kind == FrameKind::failure) take_failure(*frame, reader);
            if (frame->bytes != 0) throw Dropped(fabric::Drop::malformed);
            if (frame->kind != FrameKind::alive) hears_.frame(*frame);
        }
        if (written || frame) continue;
        try {
            channel_->limit(now + beat);
            channel_->wait(writing);
        } catch (const fabric::TimedOut&) {  // time for a sign of life
        }
        channel_->limit(Clock::time_point::max());
    }
}

void Link::take_failure(const Frame& frame, fabric::FrameReader& reader) {
    channel_->limit(Clock::now() + timing_.silence);
    throw Broken(text_of(read_bytes(*channel_, reader, frame.bytes, fabric::kMostFailureBytes)));
}

bool Link::start_next(fabric::FrameWriter& writer) {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    under_way_ = true;
    writer.start(queue_.front().frame, queue_.front().payload);
    return true;
}

void Link::sent() {
    Message message;
    {
        const std::lock_guard lock(mutex_);
        message = std::move(queue_.front());
        queue_.pop_front();
        under_way_ = false;
        busy_ = true;
        if (is_record(message.frame.kind)) record_bytes_ += message.frame.bytes;
    }
    message.sent();
    {
        const std::lock_guard lock(mutex_);
        busy_ = false;
    }
    changed_.notify_all();
}

void Link::give_up_all() {
    std::deque<Message> left;
    {
        const std::lock_guard lock(mutex_);
        left.swap(queue_);
        ended_ = busy_ = true;
        under_way_ = false;
    }
    for (const Message& message : left) message.sent();
    {
        const std::lock_guard lock(mutex_);
        busy_ = false;
    }
    changed_.notify_all();
}

}  // namespace luwu::standby
