#include "fabric/tcp/tcp_lane.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace luwu::fabric {

TcpLane::TcpLane(const TcpLinkSettings& settings, const TlsContext* tls, Stream stream, std::uint64_t incarnation,
                 std::function<void(const Error&)> on_failure)
    : settings_(settings), tls_(tls), stream_(stream), incarnation_(incarnation), on_failure_(std::move(on_failure)) {}

void TcpLane::start() {
    thread_ = std::thread([this] { run(); });
}

void TcpLane::post(TcpRequest request) {
    {
        const std::lock_guard lock(mutex_);
        if (!ended_) {
            requests_.push_back(std::move(request));
            bell_.ring();
            return;
        }
    }
    request.done(false);
}

void TcpLane::ask_to_stop() { bell_.stop(); }

void TcpLane::stop() {
    ask_to_stop();
    if (thread_.joinable()) thread_.join();
}

bool TcpLane::wait_connected(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return connected_ || ended_; });
}

bool TcpLane::has_connected() const {
    const std::lock_guard lock(mutex_);
    return connected_;
}

TcpLinkStats TcpLane::stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
}

std::chrono::milliseconds TcpLane::broken_for() const {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (!broken_since_ || lasts(now)) return {};
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - *broken_since_);
}

// A connection that has lasted as long as the longest pause between two counts as one that is there. `mutex_` is held.
bool TcpLane::lasts(Clock::time_point now) const {
    return connected_at_ && now - *connected_at_ > settings_.timing.longest_backoff;
}

std::chrono::milliseconds TcpLane::silent_for() const {
    const std::lock_guard lock(mutex_);
    const auto channel = channel_.lock();
    return channel ? channel->silent_for() : std::chrono::milliseconds(0);
}

void TcpLane::run() {
    pthread_setname_np(pthread_self(), stream_ == Stream::parameters ? "luwu-pulls" : "luwu-pushes");
    block_sigpipe();
    try {
        while (!bell_.stopped()) {
            const auto channel = connect();
            if (channel == nullptr) break;
            try {
                exchange(*channel);
            } catch (const Broken&) {
                lost();
            }
        }
        end(false, Error(ErrorKind::server, "the connection was closed"));
    } catch (const Error& error) {
        end(true, error);
    }
}

void TcpLane::end(bool failed, const Error& error) {
    if (failed) on_failure_(error);  // before any request fails: whoever waits for one asks for the reason
    std::deque<TcpRequest> left;
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
        left.swap(requests_);
    }
    changed_.notify_all();
    for (const TcpRequest& request : left) request.done(false);
}

// Returns nothing if the lane was asked to stop. Throws Error when the server refuses, or is not reached in time.
std::shared_ptr<Channel> TcpLane::connect() {
    const auto first = lost_since_.value_or(Clock::now());
    lost_since_ = first;
    std::chrono::milliseconds pause = settings_.timing.backoff;
    while (!bell_.stopped()) {
        std::string reason;
        try {
            return dial();
        } catch (const TlsRefused& refused) {
            throw Error(ErrorKind::server, "no connection to the server at " + server() + ": " + refused.what());
        } catch (const Broken& broken) {
            reason = broken.what();
        }
        if (Clock::now() + pause > first + settings_.timing.reconnect) {
            const double seconds = std::chrono::duration<double>(settings_.timing.reconnect).count();
            throw Error(ErrorKind::server, "the server at " + server() + " was not reached within " +
                                               std::to_string(seconds).substr(0, 5) + " seconds (" + reason +
                                               "); see whether it runs and the network lets this host through, then "
                                               "run again to resume at the last committed step");
        }
        back_off(pause);
        pause = std::min(2 * pause, settings_.timing.longest_backoff);
    }
    return nullptr;
}

void TcpLane::back_off(std::chrono::milliseconds pause) {
    const auto until = Clock::now() + pause;
    try {
        while (!bell_.stopped()) wait_for(-1, 0, bell_, until);
    } catch (const TimedOut&) {
    }
}

// Connects and says hello; throws Broken for what the next attempt may not meet.
std::shared_ptr<Channel> TcpLane::dial() {
    const auto deadline = Clock::now() + settings_.timing.hello;
    Descriptor socket = connect_to(settings_.address, settings_.port, bell_, deadline);
    tune(socket, settings_.timing);
    auto channel = std::make_shared<Channel>(std::move(socket), bell_, tls_, settings_.address);
    channel->limit(deadline);
    channel->handshake();
    send_hello(*channel, {stream_, settings_.job, incarnation_, settings_.rank, settings_.workers, settings_.token});
    FrameReader reader;
    std::optional<Frame> frame;
    while (!(frame = reader.read_header(*channel))) {
        channel->wait(false);
    }
    if (frame->kind == FrameKind::failure) take_failure(*channel, reader, *frame);
    if (frame->kind == FrameKind::refused) {
        // The server has ended this worker's session. The control plane brings the reason, maybe a moment later.
        if (has_connected()) back_off(settings_.timing.hello);
        throw Error(ErrorKind::server, "the server at " + server() + " refused worker " +
                                           std::to_string(settings_.rank) + ": its " +
                                           name_of(static_cast<Drop>(frame->block)) +
                                           " is not what the server expects; join the run again, with the same LuWu");
    }
    if (frame->kind != FrameKind::welcome) throw Dropped(Drop::malformed);
    channel->limit(Clock::time_point::max());
    const bool takes = stream_ == Stream::gradients;
    while (takes && first_sequence_ <= frame->sequence) answered();  // only their answers were lost
    const std::lock_guard lock(mutex_);
    connected_ = true;
    connected_at_ = Clock::now();
    channel_ = channel;
    changed_.notify_all();
    return channel;
}

// Sends and receives until the connection breaks. Neither waits for the other: while an answer comes in, what was asked
// for in the meantime goes out.
void TcpLane::exchange(Channel& channel) {
    FrameWriter writer;
    FrameReader reader;
    std::size_t sent = 0;  // of requests_, in this connection
    bool writing = false;
    std::optional<std::span<std::byte>> into;  // of the answer that comes in
    while (true) {
        if (!writing) writing = start_next(writer, sent);
        const bool written = writing && writer.write_some(channel);
        if (written) {
            writing = false;
            ++sent;
        }
        const auto frame = into ? std::nullopt : reader.read_header(channel);
        if (frame) {
            if (frame->kind == FrameKind::failure) take_failure(channel, reader, *frame);
            if (sent == 0) throw Dropped(Drop::malformed);
            into = place_of(*frame);
        }
        const bool whole = into && (into->empty() || reader.read_payload(channel, *into));
        if (whole) {
            into.reset();
            --sent;
            answered();
        }
        if (!written && !frame && !whole) channel.wait(writing);
    }
}

// Starts the next request that this connection has not sent yet; false: there is none.
bool TcpLane::start_next(FrameWriter& writer, std::size_t& sent) {
    const std::lock_guard lock(mutex_);
    if (sent == requests_.size()) return false;
    const TcpRequest& request = requests_[sent];
    writer.start({request.kind, request.block, first_sequence_ + sent, request.payload.size()}, request.payload);
    return true;
}

// Place for the payload of an answer.
std::span<std::byte> TcpLane::place_of(const Frame& answer) {
    const std::lock_guard lock(mutex_);
    const TcpRequest& request = requests_.front();
    const FrameKind expected = stream_ == Stream::parameters ? FrameKind::parameters : FrameKind::taken;
    if (answer.kind != expected || answer.sequence != first_sequence_ || answer.block != request.block) {
        throw Dropped(Drop::malformed);
    }
    if (answer.bytes != request.into.size()) {
        throw Error(ErrorKind::server, "the server at " + server() + " sent " + std::to_string(answer.bytes) +
                                           " bytes for block " + std::to_string(answer.block) + " where " +
                                           std::to_string(request.into.size()) +
                                           " were expected; is it of the same model?");
    }
    return request.into;
}

void TcpLane::take_failure(Channel& channel, FrameReader& reader, const Frame& frame) const {
    if (frame.bytes == 0 || frame.bytes > kMostFailureBytes ||
        frame.block > static_cast<std::uint32_t>(kLastErrorKind)) {
        throw Dropped(Drop::malformed);
    }
    std::string text(frame.bytes, '\0');
    while (!reader.read_payload(channel, std::as_writable_bytes(std::span(text)))) channel.wait(false);
    throw Error(static_cast<ErrorKind>(frame.block), text);
}

// A server that takes connections and ends them at once is not reached either.
void TcpLane::lost() {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (!lost_since_ || now - *connected_at_ > settings_.timing.silence) lost_since_ = now;
    ++stats_.reconnects;
    if (!bell_.stopped() && (!broken_since_ || lasts(now))) broken_since_ = now;
    connected_at_.reset();
}

void TcpLane::answered() {
    TcpRequest request;
    {
        const std::lock_guard lock(mutex_);
        if (requests_.empty()) throw Dropped(Drop::malformed);
        request = std::move(requests_.front());
        requests_.pop_front();
        ++first_sequence_;
        stats_.bytes_received += request.into.size();
        stats_.bytes_sent += request.payload.size();
        broken_since_.reset();
    }
    lost_since_.reset();
    request.done(true);
}

}  // namespace luwu::fabric
