// Spans of the sums that a switch makes, for a trace: of each block's gradient, from its first packet until the last of
// its sums was sent. Called by the switch's thread.
#pragma once

#include <cstdint>
#include <map>

#include "fabric/protocol/node.h"
#include "fabric/protocol/wire.h"
#include "trace/recorder.h"

namespace luwu::switching {

class BlockSums {
  public:
    // Records the first so many spans from now on.
    void start(std::uint64_t most_records);
    // Records no more, and returns the spans, also of blocks whose sums are not all sent yet.
    trace::Recorded stop();

    [[nodiscard]] bool on() const noexcept { return recorder_.on(); }
    // A packet of a gradient came from a child.
    void came(const fabric::Head& head, fabric::Time now);
    // The sum of a packet was sent, or sent again.
    void sent(const fabric::Head& head, fabric::Time now);
    // The server has all sums below this number: nothing more comes of blocks that end there.
    void release(std::uint64_t sequence);
    // Packets are numbered anew.
    void begin_epoch();

  private:
    struct Open {
        std::uint64_t begin_ns;
        std::uint64_t end_ns;
        std::uint64_t bytes;
        std::uint32_t block;
    };
    using Blocks = std::map<std::uint64_t, Open>;  // by the number of a block's first packet

    void record(const Open& open);

    trace::Recorder recorder_;
    Blocks open_;
};

}  // namespace luwu::switching
