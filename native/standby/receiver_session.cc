#include "standby/receiver_session.h"

#include <utility>

#include "standby/sender.h"
#include "store/records.h"

namespace luwu::standby {

namespace {

using fabric::Broken;
using fabric::Clock;
using fabric::Drop;
using fabric::Dropped;
using fabric::Frame;
using fabric::FrameKind;

}  // namespace

ReceiverSession::ReceiverSession(const store::ChunkStore& store, Applier& applier, fabric::Channel& channel,
                                 std::chrono::milliseconds silence, Says says)
    : store_(store), applier_(applier), channel_(channel), silence_(silence), says_(std::move(says)) {}

// The next connection has as many buffers as this one.
ReceiverSession::~ReceiverSession() {
    if (buffer_) applier_.give_back(std::move(*buffer_));
}

void ReceiverSession::serve() {
    auto spoke = Clock::now();
    auto heard = spoke;
    while (true) {
        answer();
        const auto now = Clock::now();
        const bool reads = has_room();
        if (reads && read()) {
            heard = now;
            says_.heard();
            continue;
        }
        if (!reads) heard = now;  // it waits for this side
        if (now - heard > silence_) throw Broken("the server says nothing any more");
        if (now - spoke > silence_ / kBeats) {
            outbox_.push_back({FrameKind::alive, 0, 0, 0});
            spoke = now;
        }
        if (write()) continue;
        try {
            channel_.limit(now + silence_ / kBeats);
            reads || writing_ ? channel_.wait(writing_) : channel_.wait_for_bell();
        } catch (const fabric::TimedOut&) {  // time for a sign of life
        }
        channel_.limit(Clock::time_point::max());
    }
}

void ReceiverSession::answer() {
    if (auto commit = applier_.committed()) {
        commits_ = false;
        outbox_.push_back({FrameKind::committed, 0, commit->step, 0});
        says_.committed(std::move(*commit));
    }
    if (const auto word = says_.noted()) outbox_.push_back({FrameKind::noted, 0, *word, 0});
}

bool ReceiverSession::has_room() {
    if (!buffer_) buffer_ = applier_.take_buffer();
    return buffer_.has_value();
}

bool ReceiverSession::read() {
    if (!frame_) {
        const auto frame = reader_.read_header(channel_);
        if (!frame) return false;
        take(*frame);
        return true;
    }
    if (!reader_.read_payload(channel_, into_)) return false;
    take_payload(*std::exchange(frame_, std::nullopt));
    return true;
}

bool ReceiverSession::write() {
    if (!writing_) {
        if (outbox_.empty()) return false;
        writer_.start(outbox_.front(), {});
        writing_ = true;
    }
    if (!writer_.write_some(channel_)) return false;
    outbox_.pop_front();
    writing_ = false;
    return true;
}

const store::ChunkPlace& ReceiverSession::place_of(const Frame& frame) const {
    const auto chunks = store_.layout().chunks();
    if (frame.block >= chunks.size()) throw Dropped(Drop::malformed);
    return chunks[frame.block];
}

// The payload comes to memory of its own, unless it is a record's.
void ReceiverSession::expect(const Frame& frame, std::uint64_t least, std::uint64_t most) {
    if (frame.bytes < least || frame.bytes > most) throw Dropped(Drop::oversized);
    payload_.resize(frame.bytes);
    into_ = payload_;
    frame_ = frame;
}

void ReceiverSession::take(const Frame& frame) {
    if (frame.kind == FrameKind::alive && frame.bytes == 0) return;
    const bool in_sync = frame.kind == FrameKind::in_sync;
    if ((in_sync || frame.kind == FrameKind::released) && frame.bytes == 0) return says_.sync(in_sync, frame.sequence);
    // Nothing but these follows a commit before its answer: a person may give the standby up at any time.
    if (commits_) throw Dropped(Drop::malformed);
    const std::uint64_t slot = store::commit_slot_bytes(store_.layout());
    switch (frame.kind) {
        case FrameKind::record_parameters:
            if (frame.bytes != place_of(frame).parameter_bytes) throw Dropped(Drop::oversized);
            into_ = {buffer_->data(), frame.bytes};
            frame_ = frame;
            parameters_.reset();
            return;
        case FrameKind::record_states: {
            const store::ChunkPlace& place = place_of(frame);
            if (!parameters_ || parameters_->block != frame.block || parameters_->sequence != frame.sequence) {
                throw Dropped(Drop::malformed);
            }
            if (frame.bytes != place.state_bytes()) throw Dropped(Drop::oversized);
            into_ = {buffer_->data() + place.parameter_bytes, frame.bytes};
            frame_ = frame;
            return;
        }
        case FrameKind::commit:
            return expect(frame, slot, slot + kMostNoteBytes);
        case FrameKind::failure:
            return expect(frame, 1, fabric::kMostFailureBytes);
        default:
            throw Dropped(Drop::malformed);
    }
}

void ReceiverSession::take_payload(const Frame& frame) {
    if (frame.kind == FrameKind::record_parameters) {
        parameters_ = frame;
    } else if (frame.kind == FrameKind::record_states) {
        parameters_.reset();
        says_.record(place_of(frame).record_bytes());
        applier_.add({frame.block, frame.sequence, *std::exchange(buffer_, std::nullopt)});
    } else if (frame.kind == FrameKind::commit) {
        const auto slot = static_cast<std::ptrdiff_t>(store::commit_slot_bytes(store_.layout()));
        auto decoded = store::decode_commit(std::span(payload_).first(static_cast<std::size_t>(slot)), store_.uuid(),
                                            store_.layout());
        if (decoded.state != store::DecodedCommit::State::valid || !decoded.record.has_values) {
            throw Dropped(Drop::malformed);
        }
        commits_ = true;
        applier_.commit(std::move(decoded.record), {payload_.begin() + slot, payload_.end()});
    } else {
        throw Error(ErrorKind::invalid, {reinterpret_cast<const char*>(payload_.data()), payload_.size()});
    }
}

}  // namespace luwu::standby
