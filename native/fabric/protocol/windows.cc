#include "fabric/protocol/windows.h"

#include <algorithm>

namespace luwu::fabric {

void close_holes(std::uint32_t stream, std::uint64_t until, Heartbeat& heartbeat) {
    if (heartbeat.holes_used == 0 || heartbeat.holes_used == LUWU_MOST_HOLES) return;
    const Hole& last = heartbeat.holes[heartbeat.holes_used - 1];
    if (last.stream != stream || last.first + last.length >= until) return;
    heartbeat.holes[heartbeat.holes_used++] = {until, 0, stream};
}

ReceiveWindow::Verdict ReceiveWindow::look(std::uint64_t sequence) const {
    if (sequence < ack_) return Verdict::duplicate;
    if (sequence >= end()) return Verdict::outside;
    return has(sequence) ? Verdict::duplicate : Verdict::fresh;
}

void ReceiveWindow::mark(std::uint64_t sequence) {
    arrived_[sequence % arrived_.size()] = true;
    highest_ = std::max(highest_, sequence + 1);
    while (ack_ < highest_ && has(ack_)) arrived_[ack_++ % arrived_.size()] = false;
}

void ReceiveWindow::report_holes(luwu_stream stream, std::uint64_t next, Heartbeat& heartbeat) const {
    const std::uint64_t until = std::min(std::max(next, highest_), end());
    for (std::uint64_t at = ack_; at < until && heartbeat.holes_used < LUWU_MOST_HOLES;) {
        if (at < highest_ && has(at)) {
            ++at;
            continue;
        }
        std::uint64_t last = at + 1;
        while (last < until && (last >= highest_ || !has(last))) ++last;
        heartbeat.holes[heartbeat.holes_used++] = {at, static_cast<std::uint32_t>(last - at), stream};
        at = last;
    }
    close_holes(stream, until, heartbeat);
}

void ReceiveWindow::skip_to(std::uint64_t sequence) {
    if (sequence >= end()) {
        arrived_.assign(arrived_.size(), false);
        ack_ = highest_ = sequence;
        return;
    }
    while (ack_ < sequence) arrived_[ack_++ % arrived_.size()] = false;
    highest_ = std::max(highest_, ack_);
    while (ack_ < highest_ && has(ack_)) arrived_[ack_++ % arrived_.size()] = false;
}

void ReceiveWindow::reset() {
    ack_ = highest_ = 0;
    arrived_.assign(arrived_.size(), false);
}

void SendWindow::take_state(std::uint64_t ack, std::uint64_t credit, Time now) {
    credit_ = std::max(credit_, credit);
    if (ack <= ack_ || ack > next_) return;
    const Time took = now - std::min(now, sent_at(ack - 1));
    // A packet behind a lost one waits for it, and its time has that wait in it. So shorter times count for more.
    answered_in_ = answered_in_ == 0 || took < answered_in_ ? took : answered_in_ + (took - answered_in_) / 32;
    ack_ = ack;
    moved_at_ = now;
    patience_ = 0;
    stall_burst_ = 1;
    std::erase_if(missing_, [this](std::uint64_t sequence) {
        if (sequence >= ack_) return false;
        queued_[sequence % queued_.size()] = false;
        return true;
    });
}

std::uint64_t SendWindow::take_hole(const Hole& hole, Time now, Time min_age) {
    std::uint64_t found = 0;
    if (hole.first >= next_) return 0;
    const std::uint64_t first = std::max(hole.first, ack_);
    const std::uint64_t end = std::min(hole.first + hole.length, next_);
    for (std::uint64_t sequence = first; sequence < end; ++sequence) {
        if (queued_[sequence % queued_.size()] || sent_at(sequence) + min_age > now) continue;
        queued_[sequence % queued_.size()] = true;
        missing_.push_back(sequence);
        ++found;
    }
    return found;
}

std::uint64_t SendWindow::resend_if_stalled(Time now, Time timeout, Time longest_timeout, std::uint64_t most) {
    if (!outstanding()) {
        moved_at_ = now;
        return 0;
    }
    patience_ = std::max(patience_, timeout);
    if (now < moved_at_ + patience_) return 0;
    moved_at_ = now;
    patience_ = std::min(2 * patience_, longest_timeout);
    const std::uint64_t length = std::min(next_ - ack_, stall_burst_);
    stall_burst_ = std::min(2 * stall_burst_, most);
    return take_hole({ack_, static_cast<std::uint32_t>(length), 0}, now, timeout);
}

std::uint64_t SendWindow::limit(std::uint64_t ready) const {
    return std::min({ready, credit_, ack_ + sent_at_.size()});
}

bool SendWindow::has_work(std::uint64_t ready) const { return !missing_.empty() || next_ < limit(ready); }

std::optional<std::uint64_t> SendWindow::take(std::uint64_t ready, Time now) {
    if (!missing_.empty()) {
        const std::uint64_t sequence = missing_.front();
        missing_.pop_front();
        queued_[sequence % queued_.size()] = false;
        sent_at(sequence) = now;
        ++resent_;
        return sequence;
    }
    if (next_ >= limit(ready)) return std::nullopt;
    if (!outstanding()) moved_at_ = now;
    sent_at(next_) = now;
    return next_++;
}

void SendWindow::reset() {
    next_ = ack_ = credit_ = 0;
    missing_.clear();
    queued_.assign(queued_.size(), false);
    moved_at_ = patience_ = 0;
    stall_burst_ = 1;
}

}  // namespace luwu::fabric
