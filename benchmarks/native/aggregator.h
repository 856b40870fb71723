// The fabric alone, without store and optimizer: every worker pushes one block, every worker pulls the mean.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "fabric/shm/streams.h"

namespace luwu::bench {

// Rounds follow one another: in each, every worker pushes block 0 (fp32), pulls it and releases it, once. The mean is
// summed in rank order straight out of the workers' arenas, into the one window that all of them read.
class Aggregator {
  public:
    Aggregator(std::uint64_t elements, std::uint32_t workers, std::uint32_t threads);  // throws Error
    ~Aggregator();
    Aggregator(const Aggregator&) = delete;
    Aggregator& operator=(const Aggregator&) = delete;

    [[nodiscard]] std::array<int, 3> files_of(std::uint32_t rank) const;

  private:
    void handle(std::uint32_t rank, fabric::Request& request);
    void push(std::uint32_t rank, fabric::Request& request);
    void pull(std::uint32_t rank, fabric::Request& request);
    void release();
    void sum();

    std::uint64_t elements_;
    std::uint32_t workers_;
    std::uint32_t threads_;
    fabric::MemoryFile window_file_;
    fabric::Mapping window_;
    std::vector<fabric::MemoryFile> arena_files_;
    std::vector<fabric::Mapping> arenas_;
    std::mutex mutex_;
    std::condition_variable window_free_;
    std::vector<fabric::Request*> pushes_;  // by rank, of this round
    std::uint32_t arrived_ = 0;
    std::vector<fabric::Request*> waiting_pulls_;  // by rank
    std::vector<bool> unread_;                     // by rank: has not pulled the mean that is in the window
    std::uint32_t reads_left_ = 0;                 // releases to come before the window may be written again
    bool closing_ = false;
    fabric::Streams streams_;  // last: its threads end before what they use
};

}  // namespace luwu::bench
