#include "harm.h"

#include <algorithm>

namespace luwu::wire {
namespace {

bool has(std::span<const std::uint8_t> payload, const Match& match) {
    if (match.offset + match.width > payload.size()) return false;
    std::uint64_t value = 0;
    for (const std::uint8_t byte : payload.subspan(match.offset, match.width)) value = value << 8 | byte;
    return (value & match.mask) == match.value;
}

}  // namespace

std::uint64_t Random::next() {
    std::uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
}

// A rule's numbers depend on nothing but the seed and its place, so a rule put after it changes nothing for it.
Harm::Harm(std::uint64_t seed, std::vector<Rule> rules) {
    Random seeds(seed);
    for (Rule& rule : rules) rules_.push_back({std::move(rule), Random(seeds.next()), {}});
}

bool Harm::looks_at(const Rule& rule, std::span<const std::uint8_t> frame, const Segment& segment) {
    if (segment.protocol != rule.protocol) return false;
    if (rule.port != 0 && rule.port != segment.source_port && rule.port != segment.destination_port) return false;
    const auto payload = frame.subspan(segment.payload, segment.payload_bytes());
    return std::ranges::all_of(rule.matches, [&](const Match& match) { return has(payload, match); });
}

bool Harm::corrupt(State& state, std::span<std::uint8_t> frame, const Segment& segment) {
    if (segment.payload_bytes() == 0) return false;
    for (std::uint64_t flip = 0; flip < state.rule.bits; ++flip) {
        const std::uint64_t bit = state.random.next() % (8 * segment.payload_bytes());
        frame[segment.payload + bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    }
    if (state.rule.action == Action::kCorruptAndFix) fix_checksum(frame, segment);
    return true;
}

Verdict Harm::judge(std::span<std::uint8_t> frame, const Segment& segment) {
    Verdict verdict;
    if (segment.protocol == 0) return verdict;
    for (std::size_t number = 0; number < rules_.size(); ++number) {
        State& state = rules_[number];
        if (!looks_at(state.rule, frame, segment)) continue;
        const std::uint64_t ordinal = ++state.counts.seen;
        if (ordinal < state.rule.first || ordinal > state.rule.last) continue;
        if (state.random.uniform() >= state.rule.probability) continue;
        ++state.counts.acted;
        switch (state.rule.action) {
            case Action::kDrop:
                verdict.dropped = true;
                return verdict;
            case Action::kDuplicate:
                ++verdict.copies;
                break;
            case Action::kHold:
                verdict.held_by = number;
                break;
            case Action::kCorrupt:
            case Action::kCorruptAndFix:
                verdict.corrupted |= corrupt(state, frame, segment);
                break;
        }
    }
    return verdict;
}

std::vector<RuleCounts> Harm::counts() const {
    std::vector<RuleCounts> result;
    for (const State& state : rules_) result.push_back(state.counts);
    return result;
}

}  // namespace luwu::wire
