// Step 5: blocks on their way from all gradients to the last record written, chunk by chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/chunk_update.h"
#include "pipeline/shared.h"

namespace luwu::pipeline {

class Updates {
  public:
    explicit Updates(Shared& shared);

    // Sets the parameter group of each range of a block; without a call all is group 0.
    void set_segments(std::uint32_t block, std::vector<Segment> segments);

    void begin(const step::Update& action);
    // Call when the block has a place in the window and the parameters that its update needs are there.
    void start_chunks(std::uint32_t block);
    // Parameters that start_chunks() must wait for are being read.
    void await_parameters(std::uint32_t block) { blocks_[block].needs_parameters = true; }
    void parameters_there(std::uint32_t block);
    void chunk_has(std::uint32_t chunk);   // its states, or memory with its kept gradient
    void update_one(std::uint32_t chunk);  // takes the lock
    void seal_one(std::uint32_t chunk);    // takes the lock; of a chunk that memory holds alone
    void chunk_updated(std::uint32_t chunk, bool valid);
    void chunk_written(std::uint32_t chunk);
    void flush(const std::vector<std::uint32_t>& blocks);  // writes the records that are in memory alone
    void end_step();

    // From its first chunk until its last record is written.
    [[nodiscard]] bool started(std::uint32_t block) const { return blocks_[block].started; }
    // Memory holds something other than the committed version: from this step's first update until the step ends.
    [[nodiscard]] bool changed(std::uint32_t block) const { return blocks_[block].changed; }
    [[nodiscard]] bool any_under_way() const { return under_way_ > 0; }

  private:
    struct Block {
        bool started = false;
        bool changed = false;
        bool needs_parameters = false;
        std::uint32_t chunks_to_update = 0;
        std::uint32_t chunks_to_write = 0;
        std::vector<Segment> segments;
    };

    void begin_chunks(std::uint32_t block, std::uint32_t to_write);
    void want_chunk(std::uint32_t chunk);
    [[nodiscard]] ChunkUpdate describe(std::uint32_t chunk, std::uint64_t count) const;  // what memory holds of it
    [[nodiscard]] ChunkUpdate make_update(std::uint32_t chunk) const;
    void seal_record(const ChunkUpdate& update, const ChunkUpdateResult& result) const;  // without the lock

    Shared& shared_;
    std::vector<Block> blocks_;
    std::vector<bool> memory_alone_;   // per chunk: its last update is not on the disk
    std::vector<std::uint8_t> needs_;  // per chunk, before its update: states, memory for its kept gradient, and
                                       // for what is still to be written
    std::uint32_t under_way_ = 0;      // blocks: they need nothing more of the window
};

}  // namespace luwu::pipeline
