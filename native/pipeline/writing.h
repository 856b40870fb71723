// Step 6, in a thread of its own: writes records, kept gradients and commits. It waits for a full disk there, without
// the lock, so that everything else of the server answers meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "pipeline/io_stage.h"
#include "pipeline/shared.h"

namespace luwu::pipeline {

class Writing {
  public:
    explicit Writing(Shared& shared);
    void stop();  // finishes transfers under way

    void write_record(std::uint32_t chunk, std::uint64_t count, std::uint64_t step);
    // Writes a record of a commit point that follows. `copy`: see IoTask. Ends with PointWrites::done().
    void write_following(std::uint32_t chunk, std::uint64_t count, std::byte* copy);
    void write_kept(std::uint32_t chunk);
    void commit(store::CommitRecord record);
    void post(std::function<void()> job) { writer_->post(std::move(job)); }  // runs in the writer's thread
    [[nodiscard]] const char* engine_name() const { return writer_->engine_name(); }
    [[nodiscard]] std::uint64_t writing_nanoseconds() const { return writer_ ? writer_->busy_nanoseconds() : 0; }

  private:
    [[nodiscard]] std::unique_ptr<IoTask> record_task(std::uint32_t chunk, std::uint64_t count,
                                                      std::uint64_t step) const;
    void write_once_prepared(std::unique_ptr<IoTask> task);
    void write(std::unique_ptr<IoTask> task);
    [[nodiscard]] bool given_up(const IoTask& task) const;
    void prepare();                               // takes the lock
    void commit_now(store::CommitRecord record);  // takes the lock
    void done(IoTask& task);                      // takes the lock
    [[nodiscard]] store::IoRequest request_of(const IoTask& task) const;
    [[nodiscard]] std::optional<Error> write_again(IoTask& task);  // without the lock

    Shared& shared_;
    bool prepared_ = false;                       // the store is prepared for the records of this step
    std::vector<std::unique_ptr<IoTask>> first_;  // writes that wait until it is
    std::unique_ptr<IoStage> writer_;
};

}  // namespace luwu::pipeline
