// A copy of the store on another machine, as the writer sees it. It gets each record before this store's disk does, and
// it has each commit before that commit counts. native/standby has the one there is.
#pragma once

#include <functional>
#include <memory>

#include "pipeline/io_stage.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

class Replica {
  public:
    using Then = std::function<void(std::unique_ptr<IoTask>)>;

    Replica() = default;
    Replica(const Replica&) = delete;
    Replica& operator=(const Replica&) = delete;
    virtual ~Replica() = default;

    // A run begins.
    virtual void start() = 0;
    // Takes a record that is about to be written, and calls `then` with it, from any thread, once it is sent or will
    // not be. Returns at once.
    virtual void send(std::unique_ptr<IoTask> task, Then then) = 0;
    // The run ends. Calls `then` for all that it still has; from now on send() does so at once.
    virtual void give_back() = 0;
    // Call when the store has committed. Returns when the copy has that commit, too, or there is no copy. Throws Error
    // where the copy has taken over, or where stop_waiting() ended the wait.
    virtual void commit(const store::ChunkStore& store) = 0;
    virtual void stop_waiting() = 0;
};

}  // namespace luwu::pipeline
