#include "fabric/tcp/pace.h"

#include <algorithm>

namespace luwu::fabric {

bool Pace::take(const Origin& origin, Clock::time_point now) {
    Bucket& bucket = buckets_.try_emplace(origin, Bucket{burst_, now}).first->second;
    bucket = {tokens_of(bucket, now), now};
    if (bucket.tokens < 1) return false;
    bucket.tokens -= 1;
    return true;
}

void Pace::give_back(const Origin& origin) {
    const auto found = buckets_.find(origin);
    if (found != buckets_.end()) found->second.tokens = std::min(burst_, found->second.tokens + 1);
}

void Pace::forget_full(Clock::time_point now) {
    std::erase_if(buckets_, [&](const auto& entry) { return tokens_of(entry.second, now) >= burst_; });
}

double Pace::tokens_of(const Bucket& bucket, Clock::time_point now) const {
    const std::chrono::duration<double> passed = now - bucket.at;
    return std::min(burst_, bucket.tokens + per_second_ * passed.count());
}

}  // namespace luwu::fabric
