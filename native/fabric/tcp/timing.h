// Every time limit of the network fabric. There are no defaults here: who starts a server or a worker chooses.
#pragma once

#include <chrono>

namespace luwu::fabric {

using Clock = std::chrono::steady_clock;

struct Timing {
    std::chrono::milliseconds hello;            // from connecting to the answered hello, TLS included
    std::chrono::milliseconds silence;          // a host that acknowledges nothing for this long is gone
    std::chrono::milliseconds reconnect;        // how long a worker tries to reach its server again
    std::chrono::milliseconds backoff;          // before its second attempt; doubles with each further one
    std::chrono::milliseconds longest_backoff;  // bound of backoff
    std::chrono::milliseconds farewell;         // the longest time for sending the reason before closing
};

}  // namespace luwu::fabric
