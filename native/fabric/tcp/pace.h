// Limits how often one origin may come: a bucket of tokens for each, which fills at a steady rate.
#pragma once

#include <cstddef>
#include <map>

#include "fabric/tcp/crowd.h"
#include "fabric/tcp/timing.h"

namespace luwu::fabric {

// Called by one thread at a time, with a time that never goes back.
class Pace {
  public:
    // `burst`: tokens of a full bucket. `per_second`: tokens that it gains.
    Pace(double burst, double per_second) : burst_(burst), per_second_(per_second) {}
    [[nodiscard]] bool take(const Origin& origin, Clock::time_point now);  // false: it has no token left
    void give_back(const Origin& origin);                                  // whoever took it had a right to come
    void forget_full(Clock::time_point now);                               // a full bucket is as good as none
    [[nodiscard]] std::size_t size() const { return buckets_.size(); }

  private:
    struct Bucket {
        double tokens;
        Clock::time_point at;
    };
    [[nodiscard]] double tokens_of(const Bucket& bucket, Clock::time_point now) const;

    double burst_;
    double per_second_;
    std::map<Origin, Bucket> buckets_;
};

}  // namespace luwu::fabric
