#include "direction.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace luwu::wire {
namespace {

constexpr std::uint32_t kBatch = 64;
constexpr std::chrono::hours kForever{1000};

timespec to_timespec(std::chrono::nanoseconds time) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    return {seconds.count(), (time - seconds).count()};
}

}  // namespace

Direction::Direction(Interface& from, Interface& to, Limits limits, Harm harm)
    : from_(from), to_(to), limits_(limits), stop_(eventfd(0, EFD_CLOEXEC)), harm_(std::move(harm)) {
    if (stop_ < 0) throw std::system_error(errno, std::system_category(), "eventfd");
}

Direction::~Direction() {
    stop();
    close(stop_);
}

void Direction::start() {
    thread_ = std::thread([this] { run(); });
}

void Direction::stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    eventfd_write(stop_, 1);
    thread_.join();
}

void Direction::set_harm(Harm harm) {
    const std::lock_guard lock(mutex_);
    release_until(Clock::time_point::max());
    send_batch();
    harm_ = std::move(harm);
}

void Direction::run() {
    while (!stopping_) {
        if (take_batch() == 0) wait_for_work();
    }
}

std::uint32_t Direction::take_batch() {
    const std::lock_guard lock(mutex_);
    if (!held_.empty()) release_until(Clock::now());
    std::uint32_t count = 0;
    for (Received frame; count < std::min(kBatch, from_.places()) && from_.peek(count, frame); ++count) take(frame);
    send_batch();
    from_.give_back(count);
    return count;
}

void Direction::take(const Received& frame) {
    ++counts_.frames;
    counts_.bytes += frame.length;
    counts_.without_checksum += frame.checksum_missing;
    if (frame.length > limits_.mtu + kEthernetHeaderBytes || frame.length > frame.bytes.size()) {
        ++counts_.oversized;
        return;
    }
    if (harm_.empty() && !limits_.check_checksums) return forward(frame.bytes, 1);

    const Segment segment = find_segment(frame.bytes);
    if (limits_.check_checksums && !checksums_are_valid(frame.bytes, segment)) ++counts_.wrong_checksum;
    const Verdict verdict = harm_.judge(frame.bytes, segment);
    counts_.dropped += verdict.dropped;
    counts_.corrupted += verdict.corrupted;
    counts_.duplicated += verdict.copies - 1;
    if (verdict.held_by != Verdict::kNoRule && !verdict.dropped) {
        hold(frame.bytes, verdict);
    } else if (!verdict.dropped) {
        forward(frame.bytes, verdict.copies);
    }
    release_counted();
}

void Direction::forward(std::span<const std::uint8_t> frame, std::uint64_t copies) {
    counts_.forwarded += copies;
    batch_.insert(batch_.end(), copies, frame);
}

void Direction::hold(std::span<const std::uint8_t> frame, const Verdict& verdict) {
    ++counts_.held;
    const Rule& rule = harm_.rule(verdict.held_by);
    const std::chrono::nanoseconds time = rule.hold_time.count() > 0 ? rule.hold_time : kForever;
    const auto held =
        held_.emplace(Clock::now() + time, Held{Bytes(frame.begin(), frame.end()), verdict.copies, verdict.held_by,
                                                harm_.seen(verdict.held_by) + rule.hold_frames});
    if (rule.hold_frames > 0) counted_.push_back(held);
}

void Direction::release(HeldByTime::iterator held) {
    released_.push_back(std::move(held->second.frame));
    forward(released_.back(), held->second.copies);
    std::erase(counted_, held);
    held_.erase(held);
}

void Direction::release_counted() {
    const auto due = [this](const auto& held) { return harm_.seen(held->second.rule) >= held->second.release_after; };
    for (auto found = std::ranges::find_if(counted_, due); found != counted_.end();
         found = std::ranges::find_if(counted_, due)) {
        release(*found);
    }
}

void Direction::release_until(Clock::time_point time) {
    while (!held_.empty() && held_.begin()->first <= time) release(held_.begin());
}

void Direction::send_batch() {
    const std::uint64_t refused = to_.send(batch_);
    counts_.refused += refused;
    counts_.forwarded -= refused;
    batch_.clear();
    released_.clear();
}

void Direction::wait_for_work() {
    Clock::time_point until = Clock::time_point::max();
    {
        const std::lock_guard lock(mutex_);
        if (!held_.empty()) until = held_.begin()->first;
    }
    std::array<pollfd, 2> events{{{from_.descriptor(), POLLIN, 0}, {stop_, POLLIN, 0}}};
    const bool forever = until == Clock::time_point::max();
    const timespec timeout =
        to_timespec(std::max(Clock::duration::zero(), forever ? Clock::duration::zero() : until - Clock::now()));
    ppoll(events.data(), events.size(), forever ? nullptr : &timeout, nullptr);
    if ((events[0].revents & POLLERR) != 0) from_.clear_error();
}

std::string Direction::counts_as_json() {
    const std::lock_guard lock(mutex_);
    counts_.missed = from_.missed();
    std::string text = "{";
    const auto add = [&text](const char* name, std::uint64_t value) {
        text += '"' + std::string(name) + "\": " + std::to_string(value) + ", ";
    };
    add("frames", counts_.frames);
    add("bytes", counts_.bytes);
    add("forwarded", counts_.forwarded);
    add("dropped", counts_.dropped);
    add("duplicated", counts_.duplicated);
    add("held", counts_.held);
    add("corrupted", counts_.corrupted);
    add("refused", counts_.refused);
    add("oversized", counts_.oversized);
    add("without_checksum", counts_.without_checksum);
    add("wrong_checksum", counts_.wrong_checksum);
    add("missed", counts_.missed);
    text += "\"rules\": [";
    const char* separator = "";
    for (const RuleCounts& rule : harm_.counts()) {
        text += separator + std::string("{\"seen\": ") + std::to_string(rule.seen) +
                ", \"acted\": " + std::to_string(rule.acted) + "}";
        separator = ", ";
    }
    return text + "]}";
}

}  // namespace luwu::wire
