// Gradients that are kept until their step is decided: into their places, to the disk and back.
// docs/decisions/0007-clipping.md says why.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "pipeline/chunk_update.h"
#include "pipeline/io_stage.h"
#include "pipeline/kept_gradients.h"
#include "pipeline/shared.h"

namespace luwu::pipeline {

class Keeping {
  public:
    explicit Keeping(Shared& shared) : shared_(shared), blocks_(shared.layout.block_count()) {}

    // Before the first state is read: memory that was planned for states can still be given to gradients.
    void plan();
    void start(std::uint32_t block);
    void expect(std::uint32_t block);  // its update keeps each chunk
    void want_memory(std::uint32_t chunk);
    void keep_one(std::uint32_t chunk);                         // takes the lock
    void keep(const ChunkUpdate& update, std::uint32_t chunk);  // without the lock
    void store(std::uint32_t chunk);
    void written(std::uint32_t chunk);
    void read_done(IoTask& task);  // takes the lock
    void release(std::uint32_t chunk);
    void give_up(std::uint32_t chunk, bool collected);  // of a step that will be rolled back
    void drop(std::uint32_t chunk);                     // of a run that failed
    void end_step();                                    // no block needs its gradient but those that owe an update

    [[nodiscard]] bool on_disk(std::uint32_t chunk) const { return kept_ && kept_->on_disk(chunk); }
    [[nodiscard]] const std::byte* memory(std::uint32_t chunk) const { return kept_->memory(chunk); }
    [[nodiscard]] kernels::Dtype dtype(std::uint32_t block) const { return kept_->dtype(block); }
    [[nodiscard]] const KeptGradients& gradients() const { return *kept_; }

  private:
    struct Block {
        std::uint32_t chunks_to_collect = 0;  // whose gradients are still the workers'
        std::uint32_t chunks_to_keep = 0;
    };

    void reserve();  // takes the lock
    void serve_memory();
    void read(std::uint32_t chunk);
    void chunk_collected(std::uint32_t chunk);
    void chunk_kept(std::uint32_t chunk);
    [[nodiscard]] double squares(std::uint32_t block) const;

    Shared& shared_;
    std::vector<Block> blocks_;
    std::unique_ptr<KeptGradients> kept_;  // with clipping
    std::deque<std::uint32_t> waiting_;    // chunks that need a buffer
};

}  // namespace luwu::pipeline
