// Step 4: reads the states of chunks, on demand and ahead of the updates of the next step.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "pipeline/io_stage.h"
#include "pipeline/shared.h"

namespace luwu::pipeline {

class States {
  public:
    explicit States(Shared& shared);
    void stop() { reader_.reset(); }  // finishes transfers under way

    // Asks for the states of a chunk; Updates::chunk_has() is called when they are there. A chunk whose kept gradient
    // is on the disk takes memory for that first, in one order for all, so that no two chunks wait for each other.
    void want(std::uint32_t chunk);
    void serve_demand();
    // Along the order of the last step's updates, as far as buffers are free: the next step's first states are read
    // while its forward pass runs.
    void read_ahead();
    // A step was committed. This is the expected order of its owed updates, or of the next step's.
    void follow(const std::vector<std::uint32_t>& order);
    void submit(std::unique_ptr<IoTask> task);  // another read of the same disk

    [[nodiscard]] std::uint64_t reading_nanoseconds() const { return reader_ ? reader_->busy_nanoseconds() : 0; }

  private:
    void there(std::uint32_t chunk);
    void read(std::uint32_t chunk);
    [[nodiscard]] bool has_its_turn(std::uint32_t block) const;
    [[nodiscard]] bool read_block_ahead(std::uint32_t block);
    void read_done(IoTask& task);  // takes the lock

    Shared& shared_;
    std::deque<std::uint32_t> waiting_;  // chunks: gradient is there, no state buffer yet
    std::vector<bool> wanted_;           // per chunk: gradient is there, states are being read
    std::vector<std::uint32_t> order_;   // of blocks
    std::size_t ahead_block_ = 0;        // cursor in order_
    std::size_t ahead_chunk_ = 0;        // and in that block's chunks
    bool ahead_of_next_step_ = false;    // the cursor has been at the end of order_ since the step began
    std::unique_ptr<IoStage> reader_;
};

}  // namespace luwu::pipeline
