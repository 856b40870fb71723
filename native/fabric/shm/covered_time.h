// Counts the time that intervals cover together; time that several of them cover counts once.
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
    // Adds an interval that has ended. Its part before the last count() must have been counted then.
    void add(Interval interval) { ended_.push_back(interval); }
    // True when count() should be called to free the memory of intervals that have ended.
    [[nodiscard]] bool full() const { return ended_.size() >= kMostIntervals; }
    // Counts ended and open intervals up to `now`; the rest of an open one counts next time. Returns the sum of all
    // counts.
    std::uint64_t count(std::uint64_t now, const std::vector<Interval>& open = {});

  private:
    static constexpr std::size_t kMostIntervals = 1024;

    std::vector<Interval> ended_;
    std::uint64_t counted_until_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace luwu::fabric
