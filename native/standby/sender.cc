#include "standby/sender.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "standby/standing.h"
#include "store/aligned_buffer.h"
#include "store/records.h"

namespace luwu::standby {

namespace {

using fabric::Broken;
using fabric::Clock;
using fabric::Dropped;
using fabric::Frame;
using fabric::FrameKind;

constexpr std::size_t kMostStandingBytes = 64U << 20;
constexpr std::size_t kCopiesAtOnce = 8;  // chunks in memory while the standby gets what it has missed
constexpr int kBeats = 4;                 // within the time of silence

// The standby's store is no copy of the server's.
class Refused : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

std::vector<std::byte> read_bytes(fabric::Channel& channel, fabric::FrameReader& reader, std::uint64_t bytes) {
    if (bytes > kMostStandingBytes) throw Dropped(fabric::Drop::oversized);
    std::vector<std::byte> payload(bytes);
    while (bytes > 0 && !reader.read_payload(channel, payload)) channel.wait(false);
    return payload;
}

bool is_record(FrameKind kind) { return kind == FrameKind::record_parameters || kind == FrameKind::record_states; }

// True if every block of one record has been updated less often than in the other, or as often, and they are not equal.
bool is_behind(const store::CommitRecord& one, const store::CommitRecord& other) {
    return one.counts.size() == other.counts.size() && !same_counts(one, other) &&
           std::equal(one.counts.begin(), one.counts.end(), other.counts.begin(), std::less_equal<>());
}

std::string text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Sender::Sender(SenderSettings settings) : settings_(std::move(settings)), sync_(settings_.required) {
    if (settings_.tls) tls_.emplace(*settings_.tls, fabric::TlsContext::Side::client);
}

Sender::~Sender() { drop_link(); }

void Sender::connect(const std::string& address, std::uint16_t port, const fabric::Token& token) {
    const std::lock_guard turn(dialing_);
    {
        const std::lock_guard lock(mutex_);
        if (replaced_) throw Error(ErrorKind::server, *replaced_);
        if (sync_.is_connected()) {
            throw Error(ErrorKind::order, "a standby is attached already: expected none; stop that one first");
        }
    }
    drop_link();
    std::unique_ptr<Link> link;
    try {
        link = dial(address, port, token);
    } catch (const Broken& broken) {
        throw Error(ErrorKind::server, "the standby at " + fabric::name_of(address, port) + " was not reached (" +
                                           broken.what() + "); see whether the network lets this server through");
    }
    const std::lock_guard lock(mutex_);
    has_values_ = !link->standing.empty();
    link_ = std::move(link);
    link_->number = ++connection_;
    told_in_sync_ = false;
    sync_.connected();
    view_.lost_because.clear();
    link_->thread = std::thread([this, &made = *link_] { run(made); });
    changed_.notify_all();
}

std::unique_ptr<Sender::Link> Sender::dial(const std::string& address, std::uint16_t port,
                                           const fabric::Token& token) const {
    auto link = std::make_unique<Link>();
    const auto deadline = Clock::now() + settings_.timing.hello;
    fabric::Descriptor socket = fabric::connect_to(address, port, link->bell, deadline);
    fabric::tune(socket, settings_.timing);
    fabric::Channel& channel = link->channel.emplace(std::move(socket), link->bell, tls_ ? &*tls_ : nullptr, address);
    channel.limit(deadline);
    channel.handshake();
    fabric::Hello hello;
    hello.token = token;
    const auto bytes = fabric::encode(hello);
    for (std::size_t sent = 0; sent < bytes.size();) {
        const std::size_t count = channel.write_some(std::span(bytes).subspan(sent), false);
        sent += count;
        if (count == 0) channel.wait(true);
    }
    fabric::FrameReader reader;
    std::optional<Frame> frame;
    while (!(frame = reader.read_header(channel))) channel.wait(false);
    link->standing = read_bytes(channel, reader, frame->bytes);
    if (frame->kind == FrameKind::failure) throw Broken(text_of(link->standing));
    if (frame->kind != FrameKind::welcome) throw Dropped(fabric::Drop::malformed);
    return link;
}

void Sender::drop_link() {
    std::unique_ptr<Link> link;
    {
        const std::lock_guard lock(mutex_);
        link = std::move(link_);
    }
    if (link == nullptr) return;
    link->channel->abort();
    link->thread.join();
}

// ---- the connection's thread ----------------------------------------------------------------------------------------

void Sender::run(Link& link) {
    pthread_setname_np(pthread_self(), "luwu-standby");
    fabric::block_sigpipe();
    std::string why;
    try {
        exchange(link);
    } catch (const std::exception& error) {
        why = error.what();
    }
    end(why);
}

void Sender::exchange(Link& link) {
    fabric::Channel& channel = *link.channel;
    const auto beat = settings_.timing.silence / kBeats;
    fabric::FrameWriter writer;
    fabric::FrameReader reader;
    bool writing = false;
    auto heard = Clock::now();
    auto spoke = heard;
    while (true) {
        const auto now = Clock::now();
        if (now - heard > settings_.timing.silence) throw Broken("it says nothing any more");
        if (now - spoke > beat) {
            post(link.number, {{FrameKind::alive, 0, 0, 0}, {}, [] {}});
            spoke = now;
        }
        if (!writing) writing = start_next(writer);
        const bool written = writing && writer.write_some(channel);
        if (written) {
            writing = false;
            sent();
        }
        const auto frame = reader.read_header(channel);
        if (frame) {
            heard = Clock::now();
            if (frame->kind == FrameKind::failure) throw Broken(text_of(read_bytes(channel, reader, frame->bytes)));
            if (frame->bytes != 0) throw Dropped(fabric::Drop::malformed);
            take(*frame);
        }
        if (written || frame) continue;
        try {
            channel.limit(now + beat);
            channel.wait(writing);
        } catch (const fabric::TimedOut&) {  // time for a sign of life
        }
        channel.limit(Clock::time_point::max());
    }
}

bool Sender::start_next(fabric::FrameWriter& writer) {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    under_way_ = true;
    writer.start(queue_.front().frame, queue_.front().payload);
    return true;
}

void Sender::sent() {
    Message message;
    {
        const std::lock_guard lock(mutex_);
        message = std::move(queue_.front());
        queue_.pop_front();
        if (is_record(message.frame.kind)) view_.bytes_sent += message.frame.bytes;
    }
    message.sent();
    const std::lock_guard lock(mutex_);
    under_way_ = false;
    changed_.notify_all();
}

void Sender::take(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    if (frame.kind == FrameKind::committed) {
        if (awaited_ != frame.sequence) throw Dropped(fabric::Drop::malformed);
        awaited_.reset();
        sync_.has();
        view_.step = frame.sequence;
        has_values_ = true;
    } else if (frame.kind == FrameKind::noted) {
        released_ = released_ || frame.block == static_cast<std::uint32_t>(FrameKind::released);
    } else if (frame.kind != FrameKind::alive) {
        throw Dropped(fabric::Drop::malformed);
    }
    changed_.notify_all();
}

void Sender::end(const std::string& why) {
    std::deque<Message> left;
    {
        const std::lock_guard lock(mutex_);
        left.swap(queue_);
        under_way_ = !left.empty();
        sync_.lost();
        view_.lost_because = why;
        awaited_.reset();
    }
    for (const Message& message : left) message.sent();
    const std::lock_guard lock(mutex_);
    under_way_ = false;
    changed_.notify_all();
}

// ---- what the pipeline calls ----------------------------------------------------------------------------------------

void Sender::start() {
    const std::lock_guard lock(mutex_);
    stopped_ = gave_back_ = false;
}

void Sender::enqueue(Message message) {
    queue_.push_back(std::move(message));
    link_->bell.ring();
}

void Sender::post(std::uint64_t connection, Message message) {
    {
        const std::lock_guard lock(mutex_);
        if (is_there(connection)) return enqueue(std::move(message));
    }
    message.sent();
}

void Sender::send(std::unique_ptr<pipeline::IoTask> task, Then then) {
    std::unique_lock lock(mutex_);
    if (!sync_.sends() || gave_back_) {
        if (gave_back_) sync_.passed_by();
        lock.unlock();
        return then(std::move(task));
    }
    const auto part = [&](FrameKind kind, const iovec& memory) -> std::pair<Frame, std::span<const std::byte>> {
        return {{kind, task->chunk, task->count, memory.iov_len},
                {static_cast<const std::byte*>(memory.iov_base), memory.iov_len}};
    };
    const auto [parameters, parameter_bytes] = part(FrameKind::record_parameters, task->request.parts[0]);
    const auto [states, state_bytes] = part(FrameKind::record_states, task->request.parts[1]);
    enqueue({parameters, parameter_bytes, [] {}});
    // std::function wants a copy of what it holds; the pointer is taken out once.
    auto held = std::make_shared<std::unique_ptr<pipeline::IoTask>>(std::move(task));
    enqueue({states, state_bytes, [held, then = std::move(then)] { then(std::move(*held)); }});
}

// The frame that is under way is waited for, because its memory may go once this returns. A standby that got half of a
// record forgets that half.
void Sender::give_back() {
    std::deque<Message> left;
    std::unique_lock lock(mutex_);
    gave_back_ = true;
    const auto first = queue_.begin() + (under_way_ && !queue_.empty() ? 1 : 0);
    const auto stays = std::stable_partition(first, queue_.end(),
                                             [](const Message& message) { return !is_record(message.frame.kind); });
    std::move(stays, queue_.end(), std::back_inserter(left));
    queue_.erase(stays, queue_.end());
    if (!left.empty()) sync_.passed_by();
    lock.unlock();
    for (const Message& message : left) message.sent();
    lock.lock();
    changed_.wait(lock, [this] { return !under_way_; });
}

void Sender::stop_waiting() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
}

std::optional<Error> Sender::ended() const {
    if (replaced_) return Error(ErrorKind::server, *replaced_);
    if (away_since_ && Clock::now() - *away_since_ >= settings_.patience) {
        return Error(ErrorKind::server,
                     "the standby, without which no commit counts, is away for too long (" + view_.lost_because +
                         "); start it again, or give it up with luwu standby release, and run again to resume");
    }
    if (!stopped_) return std::nullopt;
    return Error(ErrorKind::server,
                 "the standby does not have the last step, and this server was stopped: start both again, and the step "
                 "counts once the standby has it");
}

void Sender::commit(const store::ChunkStore& store) {
    std::unique_lock lock(mutex_);
    sync_.committed();
    std::optional<Error> error;
    while (!error && (replaced_ || sync_.next() != Sync::Next::nothing)) {
        error = ended();
        if (!error) go_on(store, lock);
    }
    waits_since_.reset();
    away_since_.reset();
    view_.asks_to_require = false;
    if (error) throw Error(*error);
    if (sync_.is_connected() && !told_in_sync_) {
        told_in_sync_ = true;
        enqueue({{FrameKind::in_sync, 0, 0, 0}, {}, [] {}});
    }
}

// Does what is next, and returns when something has changed.
void Sender::go_on(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock) {
    const Sync::Next next = sync_.next();
    if (!waits_since_) waits_since_ = Clock::now();
    view_.asks_to_require = next == Sync::Next::require;
    if (next != Sync::Next::wait) away_since_.reset();
    if (next == Sync::Next::commit) return send_commit(store, lock);
    if (next == Sync::Next::require) return changed_.wait(lock);
    if (next == Sync::Next::wait) {
        if (!away_since_) away_since_ = Clock::now();
        changed_.wait_until(lock, *away_since_ + settings_.patience);
        return;
    }
    const std::uint64_t connection = connection_;
    lock.unlock();
    try {
        if (look_at_standing(store, connection)) copy(store, connection);
    } catch (const Refused& refused) {
        refuse(connection, refused.what());
    }
    lock.lock();
}

// Looks at what the standby has. True: it lacks this commit. Throws Refused where its store is no copy of this one.
bool Sender::look_at_standing(const store::ChunkStore& store, std::uint64_t connection) {
    std::vector<std::byte> bytes;
    {
        const std::lock_guard lock(mutex_);
        if (!is_there(connection)) return false;
        bytes = std::exchange(link_->standing, {});
    }
    const store::CommitRecord& own = store.committed();
    std::optional<Standing> standing;
    try {
        standing = decode_standing(bytes, store);
    } catch (const Error& error) {
        throw Refused(error.what());
    }
    if (!standing) return true;
    if (same_counts(standing->record, own) && standing->digest == digest_of(store)) {
        const std::lock_guard lock(mutex_);
        if (!is_there(connection)) return false;
        view_.step = own.step;
        sync_.has();
        return false;
    }
    if (is_behind(standing->record, own)) return true;
    throw Refused("the standby's store stands at step " + std::to_string(standing->record.step) + ", and that of " +
                  store.folders()[0] + " at step " + std::to_string(own.step) +
                  " of another history; give the standby an empty folder");
}

void Sender::refuse(std::uint64_t connection, const std::string& why) {
    auto text = std::make_shared<std::string>(why);
    const auto kind = static_cast<std::uint32_t>(ErrorKind::invalid);
    post(connection, {{FrameKind::failure, kind, 0, text->size()}, std::as_bytes(std::span(*text)), [text] {}});
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_there(connection) || ended(); });
}

void Sender::copy(const store::ChunkStore& store, std::uint64_t connection) {
    bool frozen = false;
    {
        const std::lock_guard lock(mutex_);
        frozen = !has_values_;
    }
    const auto chunks = store.layout().chunks();
    for (std::uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
        if (chunks[chunk].trainable || frozen) copy_chunk(store, chunk, connection);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return queue_.size() < 2 * kCopiesAtOnce || !is_there(connection); });
        if (!is_there(connection) || ended()) return;
    }
    const std::lock_guard lock(mutex_);
    if (is_there(connection)) sync_.copied();
}

void Sender::copy_chunk(const store::ChunkStore& store, std::uint32_t chunk, std::uint64_t connection) {
    const store::ChunkPlace& place = store.layout().chunks()[chunk];
    const std::uint64_t count = store.committed().counts[place.block];
    auto record = std::make_shared<store::AlignedBuffer>(place.record_bytes());
    std::byte* states = record->data() + place.parameter_bytes;
    store::IoRequest request = store.records().read_record(place, count, record->data(), states);
    store::transfer_now(request);
    if (request.error != 0) throw store.records().failed(request, place, count);
    {
        const std::lock_guard lock(mutex_);
        view_.bytes_copied += place.record_bytes();
    }
    post(connection, {{FrameKind::record_parameters, chunk, count, place.parameter_bytes},
                      {record->data(), place.parameter_bytes},
                      [record] {}});
    post(connection,
         {{FrameKind::record_states, chunk, count, place.state_bytes()}, {states, place.state_bytes()}, [record] {}});
}

void Sender::send_commit(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock) {
    const std::uint64_t slot = store::commit_slot_bytes(store.layout());
    auto payload = std::make_shared<std::vector<std::byte>>(slot);
    store::encode_commit(store.committed(), store.layout(), store.uuid(), *payload);
    payload->insert(payload->end(), note_.begin(), note_.end());
    awaited_ = store.committed().step;
    enqueue({{FrameKind::commit, 0, *awaited_, payload->size()}, *payload, [payload] {}});
    changed_.wait(lock, [this] { return !awaited_ || ended(); });
}

// ---- what the owner calls -------------------------------------------------------------------------------------------

void Sender::set_note(std::vector<std::byte> note) {
    if (note.size() > kMostNoteBytes) {
        throw Error(ErrorKind::invalid, "note: expected at most " + std::to_string(kMostNoteBytes) + " bytes, found " +
                                            std::to_string(note.size()));
    }
    const std::lock_guard lock(mutex_);
    note_ = std::move(note);
}

bool Sender::require() {
    const std::lock_guard lock(mutex_);
    if (!view_.asks_to_require) return false;
    sync_.required();
    changed_.notify_all();
    return true;
}

bool Sender::release(bool anyway) {
    const std::lock_guard turn(dialing_);
    std::unique_lock lock(mutex_);
    released_ = false;
    if (sync_.is_connected()) {
        enqueue({{FrameKind::released, 0, 0, 0}, {}, [] {}});
        changed_.wait_for(lock, settings_.timing.hello, [this] { return released_ || !sync_.is_connected(); });
    }
    const bool knows = released_;
    if (!knows && !anyway) return false;
    sync_.released();
    changed_.notify_all();
    lock.unlock();
    drop_link();
    return knows;
}

void Sender::replace(const std::string& why) {
    const std::lock_guard lock(mutex_);
    replaced_ = why;
    changed_.notify_all();
}

SenderView Sender::view() const {
    const std::lock_guard lock(mutex_);
    SenderView view = view_;
    view.connected = sync_.is_connected();
    view.required = sync_.is_required();
    view.waits = waits_since_.has_value();
    if (view.waits) {
        view.waits_for = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *waits_since_);
    }
    return view;
}

}  // namespace luwu::standby
