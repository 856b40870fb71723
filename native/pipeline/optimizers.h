// The threads of step 5 and their queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "pipeline/shared.h"

namespace luwu::pipeline {

// An optimizer thread's work on a chunk.
struct Work {
    enum class Kind : std::uint8_t {
        update,
        keep,
        seal,  // checksums of what memory holds alone
        copy,  // of a record that is still to be written
    };

    std::uint32_t chunk = 0;
    Kind kind = Kind::update;
};

class Optimizers {
  public:
    explicit Optimizers(Shared& shared) : shared_(shared) {}
    void start();
    void stop();  // takes the lock; what is in the queue is forgotten

    void add(const Work& work);
    void drop_given_up();  // and gives its buffers of kept gradients back
    void drop_all() { queue_.clear(); }

  private:
    void loop();  // takes the lock

    Shared& shared_;
    std::condition_variable ready_;
    std::deque<Work> queue_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace luwu::pipeline
