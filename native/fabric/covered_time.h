// The time that intervals cover together: where several overlap, it counts once.
#pragma once

#include <cstdint>
#include <vector>

namespace luwu::fabric {

struct Interval {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

class CoveredTime {
  public:
    // An interval that has ended. No part of it that lies before the last count() may be new.
    void add(Interval interval) { ended_.push_back(interval); }
    // Whether so many have ended that count() should be called, lest they take too much memory.
    [[nodiscard]] bool full() const { return ended_.size() >= kMostIntervals; }
    // Counts what has ended and what is open, up to `now`; the rest of an open one counts next time. Returns the sum of
    // all counts.
    std::uint64_t count(std::uint64_t now, const std::vector<Interval>& open = {});

  private:
    static constexpr std::size_t kMostIntervals = 1024;

    std::vector<Interval> ended_;
    std::uint64_t counted_until_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace luwu::fabric
