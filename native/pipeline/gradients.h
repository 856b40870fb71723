// The gradients of a step while they lie in the workers' buffers, and the replies that give the buffers back (step 3).
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/shared.h"

namespace luwu::pipeline {

class Gradients {
  public:
    explicit Gradients(Shared& shared);

    // `gradient` stays in place until the reply.
    void take(std::uint32_t stream, std::uint32_t block, const std::byte* gradient, Reply reply);
    [[nodiscard]] std::vector<const std::byte*> at(const store::ChunkPlace& place) const;  // one per stream
    // An optimizer thread reads a block's gradients from now on, without the lock; or no longer.
    void pick_up(std::uint32_t block) { ++blocks_[block].in_hand; }
    void put_down(std::uint32_t block);
    void give_back(std::uint32_t block);
    void fail();    // gives back all that nobody reads
    void forget();  // at the end of a step

  private:
    struct Block {
        std::uint32_t in_hand = 0;                // chunks
        std::vector<const std::byte*> gradients;  // per stream; null until pushed in this step
        std::vector<Reply> replies;
    };
    static void fail(Block& block);

    Shared& shared_;
    std::vector<Block> blocks_;
};

}  // namespace luwu::pipeline
