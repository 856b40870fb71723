// The threads of step 5 and their queues, one for each NUMA node.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "pipeline/shared.h"
#include "schedule/node_queues.h"

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
    explicit Optimizers(Shared& shared);
    void start();
    void stop();  // takes the lock; what is in the queue is forgotten

    void add(const Work& work);
    void drop_given_up();  // and gives its buffers of kept gradients back
    void drop_all() { queues_.clear(); }

  private:
    void loop(std::uint32_t node);  // takes the lock
    // Returns the next work of a thread of this node; nothing: it is to end.
    [[nodiscard]] std::optional<Work> wait_for_work(std::unique_lock<std::mutex>& lock, std::uint32_t node);
    void carry_out(const Work& work);  // without the lock

    Shared& shared_;
    std::vector<std::condition_variable> ready_;  // per node
    schedule::NodeQueues<Work> queues_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace luwu::pipeline
