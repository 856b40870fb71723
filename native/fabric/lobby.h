// A listening socket and the connections to it that have said nothing yet. They cost a descriptor each, and no thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "fabric/crowd.h"
#include "fabric/descriptor.h"
#include "fabric/timing.h"

namespace luwu::fabric {

class Lobby {
  public:
    struct Guest {
        Descriptor socket;
        Origin origin;
    };

    // `listener` does not block. At most so many wait, each for so long; `pause`: after descriptors have run out.
    Lobby(Descriptor listener, std::size_t most, std::chrono::milliseconds patience, std::chrono::milliseconds pause);

    [[nodiscard]] const Descriptor& listener() const { return listener_; }
    // Readable when look() has something to do; at the deadline it has, too.
    [[nodiscard]] int descriptor() const { return events_.get(); }
    [[nodiscard]] Clock::time_point deadline() const;
    // Takes in who has come and sends away whose time is over. Returns those who have said something since.
    [[nodiscard]] std::vector<Guest> look(Clock::time_point now);
    struct Counts {
        std::uint64_t crowded = 0;  // had to go for others
        std::uint64_t silent = 0;   // said nothing in time
        std::uint64_t closed = 0;   // went without a word
    };
    [[nodiscard]] const Counts& counts() const { return counts_; }

  private:
    struct Waiting {
        Guest guest;
        Clock::time_point until;
    };

    void accept_some(Clock::time_point now);
    void listen(bool listens);

    Descriptor listener_;
    Descriptor events_;
    std::chrono::milliseconds patience_;
    std::chrono::milliseconds pause_;
    std::map<std::uint64_t, Waiting> waiting_;  // by number, the oldest first
    Crowd crowd_;
    std::uint64_t next_ = 1;  // 0 is the listener's
    Clock::time_point pauses_until_ = Clock::time_point::min();
    Counts counts_;
};

}  // namespace luwu::fabric
