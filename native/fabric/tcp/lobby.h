// A listening socket and its connections that have not sent their first words yet. Each costs a descriptor, and no
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "fabric/core/descriptor.h"
#include "fabric/tcp/crowd.h"
#include "fabric/tcp/timing.h"

namespace luwu::fabric {

class Lobby {
  public:
    static constexpr std::chrono::milliseconds kRest{5};          // short beside a worker's join
    static constexpr std::chrono::milliseconds kCrowdedRest{20};  // where several connections came within the last one

    struct Guest {
        Descriptor socket;
        Origin origin;
    };

    // `listener` does not block. At most `most` connections wait, each for `patience`, until they have sent
    // `first_bytes`. When descriptors have run out, no connection is accepted for `pause`.
    Lobby(Descriptor listener, std::size_t most, std::size_t first_bytes, std::chrono::milliseconds patience,
          std::chrono::milliseconds pause);

    [[nodiscard]] const Descriptor& listener() const { return listener_; }
    // A descriptor that is readable when look() has something to do. At the deadline look() has something to do, too.
    [[nodiscard]] int descriptor() const { return events_.get(); }
    [[nodiscard]] Clock::time_point deadline() const;
    // Accepts new connections and closes those whose time is over. Returns those that have sent their first bytes, or
    // fewer and then no more.
    [[nodiscard]] std::vector<Guest> look(Clock::time_point now);
    // Until then nobody should look() again: a wake-up for each of many strangers would hold up a worker on the same
    // processor.
    [[nodiscard]] Clock::time_point rests_until() const { return rests_until_; }
    struct Stats {
        std::uint64_t crowded = 0;  // closed for others
        std::uint64_t silent = 0;   // sent too little in time
        std::uint64_t closed = 0;   // were closed by the client, which had sent nothing
    };
    [[nodiscard]] const Stats& stats() const { return stats_; }

  private:
    struct Waiting {
        Guest guest;
        Clock::time_point until;
    };

    [[nodiscard]] bool accept_some(Clock::time_point now);  // false: there may be more
    void listen(bool listens);

    Descriptor listener_;
    Descriptor events_;
    bool waits_for_more_;  // than one byte
    std::chrono::milliseconds patience_;
    std::chrono::milliseconds pause_;
    std::map<std::uint64_t, Waiting> waiting_;  // by number, the oldest first
    Crowd crowd_;
    std::uint64_t next_ = 1;  // 0 is the listener's number
    Clock::time_point pauses_until_ = Clock::time_point::min();
    Clock::time_point rests_until_ = Clock::time_point::min();
    Stats stats_;
};

}  // namespace luwu::fabric
