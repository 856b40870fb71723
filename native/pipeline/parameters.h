// Steps 1 and 2: reads parameters into the window, ahead of their use, and hands them out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "pipeline/io_stage.h"
#include "pipeline/shared.h"

namespace luwu::pipeline {

class Parameters {
  public:
    explicit Parameters(Shared& shared);
    void stop() { reader_.reset(); }  // finishes transfers under way

    void hand_out(std::uint32_t block, Reply reply);  // holds the block until release()
    void release(std::uint32_t block);
    void want(std::uint32_t block);  // for an update
    void read(std::uint32_t block);  // into the place that the block has
    // After places in the window, or what may be read, have changed.
    void retry_waiting();
    void read_ahead(std::uint32_t stream);
    void read_ahead();
    void deliver_waiting(std::uint32_t block);
    [[nodiscard]] bool awaited(std::uint32_t block) const { return !blocks_[block].waiting.empty(); }
    void fail();

    [[nodiscard]] std::uint64_t reading_nanoseconds() const { return reader_ ? reader_->busy_nanoseconds() : 0; }

  private:
    struct Block {
        std::uint32_t chunks_reading = 0;
        std::vector<Reply> waiting;  // pulls
    };

    [[nodiscard]] bool reading_allowed(std::uint32_t block) const;
    [[nodiscard]] bool update_comes(std::uint32_t block) const;
    void read_done(IoTask& task);  // takes the lock
    void resident(std::uint32_t block);
    void deliver(std::uint32_t block, const Reply& reply);

    Shared& shared_;
    std::vector<Block> blocks_;
    std::deque<std::uint32_t> waiting_blocks_;  // wanted, no place in the window yet
    std::unique_ptr<IoStage> reader_;
};

}  // namespace luwu::pipeline
