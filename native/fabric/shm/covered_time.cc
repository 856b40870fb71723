#include "fabric/shm/covered_time.h"

#include <algorithm>

namespace luwu::fabric {

std::uint64_t CoveredTime::count(std::uint64_t now, const std::vector<Interval>& open) {
    for (const Interval& interval : open) ended_.push_back({interval.begin, now});
    std::sort(ended_.begin(), ended_.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    for (const Interval& interval : ended_) {
        const std::uint64_t begin = std::max(interval.begin, counted_until_);
        const std::uint64_t end = std::min(interval.end, now);
        if (end <= begin) continue;
        total_ += end - begin;
        counted_until_ = end;
    }
    counted_until_ = std::max(counted_until_, now);
    ended_.clear();
    return total_;
}

}  // namespace luwu::fabric
