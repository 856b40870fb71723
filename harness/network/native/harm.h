// Rules of harm to the frames of one direction, each with random numbers of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "frame.h"

namespace luwu::wire {

enum class Action { kDrop, kDuplicate, kHold, kCorrupt, kCorruptAndFix };

// An unsigned big-endian number in the payload, after a mask.
struct Match {
    std::size_t offset = 0;
    std::size_t width = 1;  // 1 to 8 bytes
    std::uint64_t mask = ~std::uint64_t{0};
    std::uint64_t value = 0;
};

// Looks at frames of one protocol, maybe of one port, whose payload has all matches; acts on the first-th to the
// last-th of these (counted from 1), and on each of them with a probability.
struct Rule {
    Action action = Action::kDrop;
    std::uint8_t protocol = kUdp;
    std::uint16_t port = 0;  // source or destination; 0: any
    std::vector<Match> matches;
    std::uint64_t first = 1;
    std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
    double probability = 1.0;
    std::uint64_t hold_frames = 0;         // number of matching frames that pass first, or
    std::chrono::nanoseconds hold_time{};  // the time to wait; with both, what comes first
    std::uint64_t bits = 1;                // to flip at random places of the payload
};

// splitmix64 (Steele, Lea and Flood, 2014): the same numbers on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next();
    double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // in [0, 1)

  private:
    std::uint64_t state_;
};

struct RuleCounts {
    std::uint64_t seen = 0;
    std::uint64_t acted = 0;
};

// Fate of a frame.
struct Verdict {
    static constexpr std::size_t kNoRule = ~std::size_t{0};
    bool dropped = false;
    bool corrupted = false;
    std::uint64_t copies = 1;
    std::size_t held_by = kNoRule;
};

class Harm {
  public:
    Harm() = default;
    Harm(std::uint64_t seed, std::vector<Rule> rules);

    // Applies the rules in their order, until one drops the frame; corrupts the frame in place.
    Verdict judge(std::span<std::uint8_t> frame, const Segment& segment);

    [[nodiscard]] bool empty() const { return rules_.empty(); }
    [[nodiscard]] const Rule& rule(std::size_t number) const { return rules_[number].rule; }
    [[nodiscard]] std::uint64_t seen(std::size_t number) const { return rules_[number].counts.seen; }
    [[nodiscard]] std::vector<RuleCounts> counts() const;

  private:
    struct State {
        Rule rule;
        Random random;
        RuleCounts counts;
    };
    static bool looks_at(const Rule& rule, std::span<const std::uint8_t> frame, const Segment& segment);
    static bool corrupt(State& state, std::span<std::uint8_t> frame, const Segment& segment);

    std::vector<State> rules_;
};

}  // namespace luwu::wire
