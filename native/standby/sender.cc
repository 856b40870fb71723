#include "standby/sender.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "standby/standing.h"
#include "store/aligned_buffer.h"
#include "store/records.h"

namespace luwu::standby {

namespace {

using fabric::Broken;
using fabric::Clock;
using fabric::Frame;
using fabric::FrameKind;

constexpr std::size_t kCopiesAtOnce = 8;         // chunks in memory while the standby gets what it has missed
constexpr std::chrono::seconds kLongestWait{1};  // before the progress is looked at
constexpr std::chrono::milliseconds kLook{100};  // a copy that is stuck ends this soon where nobody waits for it

// The standby's store is no copy of the server's.
class Refused : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// True if no block of one record has been updated more often than in the other, and they are not equal.
bool is_behind(const store::CommitRecord& one, const store::CommitRecord& other) {
    return one.counts.size() == other.counts.size() && !same_counts(one, other) &&
           std::equal(one.counts.begin(), one.counts.end(), other.counts.begin(), std::less_equal<>());
}

}  // namespace

Sender::Sender(SenderSettings settings) : settings_(std::move(settings)), sync_(settings_.required) {
    if (settings_.tls) tls_.emplace(*settings_.tls, fabric::TlsContext::Side::client);
}

Sender::~Sender() { drop_link(); }

void Sender::connect(const Place& place) {
    const std::lock_guard turn(dialing_);
    {
        const std::lock_guard lock(mutex_);
        if (replaced_) throw Error(ErrorKind::server, *replaced_);
        if (closed_) throw Error(ErrorKind::server, "the server is closing");
        if (sync_.is_connected()) {
            throw Error(ErrorKind::order, "a standby is attached already: expected none; stop that one first");
        }
    }
    drop_link();
    std::shared_ptr<Link> link;
    try {
        link = std::make_shared<Link>(place, tls_ ? &*tls_ : nullptr, settings_.timing, settings_.answer);
    } catch (const Broken& broken) {
        throw Error(ErrorKind::server, "the standby at " + fabric::name_of(place.address, place.port) +
                                           " was not reached (" + broken.what() +
                                           "); see whether the network lets this server through");
    }
    const std::lock_guard lock(mutex_);
    link_ = link;
    told_ = looked_ = false;
    sync_.connected();
    link->start(
        {.frame = [this](const Frame& frame) { take(frame); }, .ended = [this](const std::string& why) { lost(why); }});
    changed_.notify_all();
}

// It stays the present one until its thread has ended, so that give_back() waits for what that thread still does.
void Sender::drop_link() {
    std::shared_ptr<Link> link;
    {
        const std::lock_guard lock(mutex_);
        link = link_;
    }
    if (!link) return;
    link->stop();
    const std::lock_guard lock(mutex_);
    sent_before_ += link->record_bytes();
    link_.reset();
}

void Sender::take(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    if (frame.kind == FrameKind::committed && awaited_ == frame.sequence) {
        awaited_.reset();
        sync_.has();
        view_.step = frame.sequence;
        has_values_ = true;
    } else if (frame.kind == FrameKind::noted) {
        noted_ = frame.sequence;
        if (noted_ == words_ && told_) sync_.knows();
    } else {
        throw fabric::Dropped(fabric::Drop::malformed);
    }
    changed_.notify_all();
}

void Sender::lost(const std::string& why) {
    const std::lock_guard lock(mutex_);
    sync_.lost();
    if (!closed_) view_.lost_because = why;
    awaited_.reset();
    changed_.notify_all();
}

// ---- what the pipeline calls ----------------------------------------------------------------------------------------

void Sender::start() {
    const std::lock_guard lock(mutex_);
    stopped_ = gave_back_ = false;
}

void Sender::send(std::unique_ptr<pipeline::IoTask> task, Then then) {
    // With the lock: after give_back() nothing is posted.
    const std::lock_guard lock(mutex_);
    if (gave_back_) sync_.passed_by();
    if (!sync_.sends()) return then(std::move(task));
    const auto frame = [&](FrameKind kind, const iovec& memory) {
        return Frame{kind, task->chunk, task->count, memory.iov_len};
    };
    const auto bytes = [](const iovec& memory) {
        return std::span(static_cast<const std::byte*>(memory.iov_base), memory.iov_len);
    };
    const iovec parameters = task->request.parts[0];
    const iovec states = task->request.parts[1];
    const Frame second = frame(FrameKind::record_states, states);
    link_->post({frame(FrameKind::record_parameters, parameters), bytes(parameters), [] {}});
    // A std::function wants a copy of what it holds; the pointer is taken out once.
    auto held = std::make_shared<std::unique_ptr<pipeline::IoTask>>(std::move(task));
    link_->post({second, bytes(states), [held, then = std::move(then)] { then(std::move(*held)); }});
}

void Sender::give_back() {
    std::shared_ptr<Link> link;
    {
        const std::lock_guard lock(mutex_);
        gave_back_ = true;
        link = link_;
    }
    if (!link || link->drop_records() == 0) return;
    const std::lock_guard lock(mutex_);
    sync_.passed_by();
}

void Sender::stop_waiting() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
}

std::optional<Error> Sender::ended() const {
    if (replaced_) return Error(ErrorKind::server, *replaced_);
    if (unanswered_ >= settings_.patience) {
        return Error(ErrorKind::server,
                     "the standby, without which no commit counts, has not answered for too long (" +
                         (view_.lost_because.empty() ? "it was not there" : view_.lost_because) +
                         "); start it again, or give it up with luwu standby release, and run again to resume");
    }
    if (!stopped_ && !closed_) return std::nullopt;
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
    unanswered_ = {};
    view_.asks_to_require = false;
    if (error) throw Error(*error);
    view_.lost_because.clear();
}

// Does what is next, and returns when something has changed.
void Sender::go_on(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock) {
    const Sync::Next next = sync_.next();
    if (!waits_since_) waits_since_ = Clock::now();
    view_.asks_to_require = next == Sync::Next::require;
    if (next == Sync::Next::commit) return send_commit(store, lock);
    if (next == Sync::Next::require) return changed_.wait(lock);
    if (next == Sync::Next::tell && !std::exchange(told_, true)) say(true);
    if (next != Sync::Next::copy) return wait_for_answer(lock);
    const std::shared_ptr<Link> link = link_;
    lock.unlock();
    try {
        if (look_at_standing(store, *link)) copy(store, *link);
    } catch (const Refused& refused) {
        refuse(*link, refused.what());
    }
    lock.lock();
}

// Waits for a change. The time counts against the patience unless records go out, and over all connections: a standby
// may come and go.
void Sender::wait_for_answer(std::unique_lock<std::mutex>& lock) {
    const auto began = Clock::now();
    const std::shared_ptr<Link> link = link_;
    const std::uint64_t before = link ? link->record_bytes() : 0;
    changed_.wait_for(lock, std::min<Clock::duration>(kLongestWait, settings_.patience - unanswered_));
    if (link && link->record_bytes() != before) return;
    unanswered_ += Clock::now() - began;
}

std::uint64_t Sender::say(bool in_sync) {
    link_->post({{in_sync ? FrameKind::in_sync : FrameKind::released, 0, ++words_, 0}, {}, [] {}});
    return words_;
}

// Looks once in a connection at what the standby has. True: it lacks this commit. Throws Refused where its store is no
// copy of this one.
bool Sender::look_at_standing(const store::ChunkStore& store, Link& link) {
    {
        const std::lock_guard lock(mutex_);
        if (!is_there(link)) return false;
        if (std::exchange(looked_, true)) return true;
    }
    const store::CommitRecord& own = store.committed();
    std::optional<Standing> standing;
    try {
        standing = decode_standing(link.take_standing(), store);
    } catch (const Error& error) {
        throw Refused(error.what());
    }
    const bool equal = standing && same_counts(standing->record, own) && standing->digest == digest_of(store);
    if (standing && !equal && !is_behind(standing->record, own)) {
        const std::string stands = "the standby's store stands at step " + std::to_string(standing->record.step) +
                                   ", and that of " + store.folders()[0] + " at step " + std::to_string(own.step);
        if (!is_behind(own, standing->record))
            throw Refused(stands + " of another history; give the standby an empty folder");
        throw Refused(stands +
                      ", as one does that was taken back, by a snapshot or a copy: have the standby take over "
                      "to keep its steps, or give it an empty folder to lose them");
    }
    const std::lock_guard lock(mutex_);
    if (!is_there(link)) return false;
    has_values_ = standing.has_value();
    if (!equal) return true;
    view_.step = own.step;
    sync_.has();
    return false;
}

void Sender::refuse(Link& link, const std::string& why) {
    auto text = std::make_shared<std::string>(why.substr(0, fabric::kMostFailureBytes));
    const auto kind = static_cast<std::uint32_t>(ErrorKind::invalid);
    link.post({{FrameKind::failure, kind, 0, text->size()}, std::as_bytes(std::span(*text)), [text] {}});
    std::unique_lock lock(mutex_);
    while (is_there(link) && !ended()) wait_for_answer(lock);
}

void Sender::copy(const store::ChunkStore& store, Link& link) {
    bool frozen = false;
    {
        const std::lock_guard lock(mutex_);
        frozen = !has_values_;
    }
    const auto chunks = store.layout().chunks();
    for (std::uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
        if (!chunks[chunk].trainable && !frozen) continue;
        copy_chunk(store, chunk, link);
        while (!link.wait_for_room(2 * kCopiesAtOnce, kLook)) {
            const std::lock_guard lock(mutex_);
            if (ended()) return;
        }
        const std::lock_guard lock(mutex_);
        if (!is_there(link) || ended()) return;
    }
    const std::lock_guard lock(mutex_);
    if (is_there(link)) sync_.copied();
}

void Sender::copy_chunk(const store::ChunkStore& store, std::uint32_t chunk, Link& link) {
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
    link.post({{FrameKind::record_parameters, chunk, count, place.parameter_bytes},
               {record->data(), place.parameter_bytes},
               [record] {}});
    link.post(
        {{FrameKind::record_states, chunk, count, place.state_bytes()}, {states, place.state_bytes()}, [record] {}});
}

void Sender::send_commit(const store::ChunkStore& store, std::unique_lock<std::mutex>& lock) {
    const std::uint64_t slot = store::commit_slot_bytes(store.layout());
    auto payload = std::make_shared<std::vector<std::byte>>(slot);
    store::encode_commit(store.committed(), store.layout(), store.uuid(), *payload);
    payload->insert(payload->end(), note_.begin(), note_.end());
    awaited_ = store.committed().step;
    link_->post({{FrameKind::commit, 0, *awaited_, payload->size()}, *payload, [payload] {}});
    while (awaited_ && !ended()) wait_for_answer(lock);
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
    if (!view_.asks_to_require || !sync_.is_connected()) return false;
    sync_.required();
    changed_.notify_all();
    return true;
}

bool Sender::release(bool anyway) {
    const std::lock_guard turn(dialing_);
    std::unique_lock lock(mutex_);
    bool knows = false;
    if (sync_.is_connected()) {
        const std::uint64_t word = say(false);
        changed_.wait_for(lock, settings_.answer, [&] { return noted_ >= word || !sync_.is_connected(); });
        knows = noted_ >= word;
        // It may read the word later: then it must read this one after it.
        if (!knows && !anyway && sync_.is_connected() && sync_.is_required()) {
            sync_.doubted();
            say(true);
        }
    }
    if (!knows && !anyway) return false;
    sync_.released();
    view_.asks_to_require = false;
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

void Sender::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        changed_.notify_all();
    }
    const std::lock_guard turn(dialing_);
    drop_link();
}

SenderView Sender::view() const {
    const std::lock_guard lock(mutex_);
    SenderView view = view_;
    view.connected = sync_.is_connected();
    view.required = sync_.is_required();
    view.bytes_sent = sent_before_ + (link_ ? link_->record_bytes() : 0);
    view.waits = waits_since_.has_value();
    if (view.waits) {
        view.waits_for = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *waits_since_);
    }
    return view;
}

}  // namespace luwu::standby
