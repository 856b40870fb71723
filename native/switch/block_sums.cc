#include "switch/block_sums.h"

#include <algorithm>
#include <iterator>

namespace luwu::switching {

namespace {

// Packets of one block's gradient are numbered one after the other.
std::uint64_t first_of(const fabric::Head& head) { return head.sequence - head.index; }

}  // namespace

void BlockSums::start(std::uint64_t most_records) {
    open_.clear();
    recorder_.start(most_records);
}

trace::Recorded BlockSums::stop() {
    begin_epoch();
    return recorder_.stop();
}

void BlockSums::came(const fabric::Head& head, fabric::Time now) {
    if (!on()) return;
    open_.try_emplace(first_of(head), Open{now, 0, 0, head.block});
}

void BlockSums::sent(const fabric::Head& head, fabric::Time now) {
    if (!on()) return;
    const auto found = open_.find(first_of(head));
    if (found == open_.end()) return;  // it began before the trace did
    found->second.end_ns = now;
    found->second.bytes += head.bytes;
}

void BlockSums::release(std::uint64_t sequence) {
    while (open_.size() > 1 && std::next(open_.begin())->first <= sequence) {
        record(open_.begin()->second);
        open_.erase(open_.begin());
    }
}

void BlockSums::begin_epoch() {
    for (const auto& [first, open] : open_) record(open);
    open_.clear();
}

void BlockSums::record(const Open& open) {
    if (open.end_ns == 0) return;  // no sum of it was sent
    recorder_.add({.begin_ns = open.begin_ns,
                   .end_ns = std::max(open.begin_ns, open.end_ns),
                   .bytes = open.bytes,
                   .block = open.block,
                   .kind = trace::Kind::sum});
}

}  // namespace luwu::switching
