// The server of one host counts, for each worker's place, the requests that will be answered later and the blocks that
// the worker holds. So the blocks of a lost worker are given back, and another worker takes the place only when no
// answer to the first is still to be written.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace luwu::fabric {

// Every function may be called from any thread.
class WorkerPlaces {
  public:
    WorkerPlaces(std::uint32_t workers, std::uint32_t blocks);

    void asked(std::uint32_t rank);     // a request came that is answered later
    void answered(std::uint32_t rank);  // its answer is written
    // A block comes out of the window for the worker. False: the worker is lost, so the block is to be released.
    [[nodiscard]] bool pulled(std::uint32_t rank, std::uint32_t block);
    void released(std::uint32_t rank, std::uint32_t block);

    // The worker is lost. Returns the blocks that it holds, each as often as it does.
    [[nodiscard]] std::vector<std::uint32_t> lose(std::uint32_t rank);
    // Returns true once nothing of the lost worker is under way; false: not in time.
    [[nodiscard]] bool wait_until_empty(std::uint32_t rank, std::chrono::milliseconds at_most);
    void take(std::uint32_t rank);  // another worker is there

  private:
    struct Place {
        bool lost = false;
        std::uint64_t under_way = 0;
        std::vector<std::uint32_t> held;  // per block: number of pulls that were not released
    };

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Place> places_;
};

}  // namespace luwu::fabric
