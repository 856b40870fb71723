// Blocks that came out of the pipeline for a worker that was gone by then. A pull's reply runs with the pipeline's lock
// held and so cannot release its block; it notes the block here, and a thread of the server releases it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "fabric/core/parameter_server.h"

namespace luwu::fabric {

// Every function may be called from any thread.
class AbandonedBlocks {
  public:
    void add(std::uint32_t block) {
        const std::lock_guard lock(mutex_);
        blocks_.push_back(block);
    }

    void release(ParameterServer& core) {
        std::vector<std::uint32_t> blocks;
        {
            const std::lock_guard lock(mutex_);
            blocks.swap(blocks_);
        }
        for (const std::uint32_t block : blocks) core.release(block);
    }

  private:
    std::mutex mutex_;
    std::vector<std::uint32_t> blocks_;
};

}  // namespace luwu::fabric
