// Base of every transport's server: a store, its residency plan, the memory that workers' pulls come from, and the
// pipeline. fabric/shm/shm_server.h serves it through shared memory, fabric/tcp/tcp_server.h over TCP.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabric/core/server_memory.h"
#include "pipeline/pipeline.h"
#include "pipeline/snapshot_keeper.h"
#include "store/chunk_store.h"

namespace luwu::fabric {

struct ServerSettings {
    std::vector<std::string> folders;  // of the store's stripes; they exist
    store::Uuid uuid{};
    store::OpenMode mode = store::OpenMode::open;
    store::StoreShape shape;
    std::vector<bool> held;  // per block: held through the whole step (the root unit's)
    std::uint64_t memory_bytes = 0;
    std::uint32_t workers = 1;
    bool one_stream = false;  // pipeline::PipelineSettings, as the next is
    std::function<void()> on_given_up = [] {};
    std::uint32_t optimizer_threads = 1;
    std::uint32_t trims = 0;                       // pipeline::PipelineSettings
    std::optional<kernels::Dtype> gradient_dtype;  // of all blocks; default: each block's own
    std::optional<float> gradient_scale;           // of the sum over workers, but for loss scale; default: 1 / workers
    // Set for a server of several, which only together have a step: it is prepared before it is committed, and where a
    // server has committed a step that another has not, it goes back to the last step that all have.
    bool one_of_several = false;
    std::optional<std::uint64_t> at_step;  // which one that is; none: nothing is committed yet
    pipeline::SnapshotSettings snapshots;
    std::shared_ptr<pipeline::Tracing> tracing = std::make_shared<pipeline::Tracing>();
    std::chrono::nanoseconds disk_full_wait{0};            // the longest time that a step waits for room on a disk
    std::shared_ptr<pipeline::Replica> replica;            // as the pipeline's
    pipeline::CommitPoints commit_points;                  // those for snapshots follow from `snapshots`
    std::optional<std::chrono::nanoseconds> commit_after;  // as the pipeline's
};

struct ServerStats : pipeline::PipelineStats {
    pipeline::SnapshotStats snapshots;
};

// Every function may be called from any thread. Replies come with the pipeline's lock held, see pipeline/pipeline.h.
class ParameterServer {
  public:
    // Throws Error as the store and the residency plan do. `on_failure` is called once, with the pipeline's lock held.
    ParameterServer(ServerSettings settings, std::function<void(const Error&)> on_failure);
    ~ParameterServer();  // fails the pipeline first, so `on_failure` must still work
    ParameterServer(const ParameterServer&) = delete;
    ParameterServer& operator=(const ParameterServer&) = delete;

    [[nodiscard]] const ServerSettings& settings() const { return settings_; }
    [[nodiscard]] const store::Layout& layout() const { return layout_; }
    [[nodiscard]] const ServerMemory& memory() const { return memory_; }

    [[nodiscard]] bool initialised() const { return initialised_; }
    [[nodiscard]] const std::vector<std::string>& findings() const { return findings_; }  // ChunkStore::findings
    void initialise(std::uint32_t block, const float* values);                            // throws Error
    void finish_initialise();                                                             // throws Error

    void set_segments(std::uint32_t block, std::vector<pipeline::Segment> segments);  // throws Error(invalid)
    pipeline::Pipeline::Begun begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                                    const pipeline::GradientSettings& gradient = {});
    void pull(std::uint32_t stream, std::uint32_t block, pipeline::Reply reply);
    void read(std::uint32_t block, pipeline::Reply reply);  // belongs to no worker's pass; release it soon
    void release(std::uint32_t block) { pipeline_->release(block); }
    void push(std::uint32_t stream, std::uint32_t block, const std::byte* gradient, pipeline::Reply reply);
    // The worker's vote, where it and the worker's pushes travel in order.
    void vote(std::uint32_t worker, bool roll_back, pipeline::Reply reply);
    // The worker's vote, where it may overtake its pushes: counts from when `pushes` pushes in all have come from it
    // since it joined. wait_for_end gives how the step ended, nothing when that takes longer; a second time the same,
    // until the next vote. Both throw Error(order) or what failed the server.
    void vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes);
    [[nodiscard]] std::optional<pipeline::Outcome> wait_for_end(std::uint32_t worker,
                                                                std::chrono::milliseconds at_most);
    [[nodiscard]] pipeline::LastWord last_word(std::uint32_t worker);  // of one server of several
    void epoch_begun() { pipeline_->epoch_begun(); }
    void joined(std::uint32_t worker);                        // its pushes are counted from zero again
    void leave(std::uint32_t worker);                         // it will make no more steps
    std::optional<std::uint64_t> lose(std::uint32_t worker);  // as the next, see pipeline/pipeline.h
    [[nodiscard]] bool wait_for_place(std::uint32_t worker, std::chrono::milliseconds at_most);

    // Takes a snapshot of the last step that was answered; which that is. Throws Error, and the training goes on.
    std::uint64_t take_snapshot();

    void fail(const Error& error) { pipeline_->fail(error); }
    // Returns true once the last step that was answered is on the disk, commit point or not; false: that takes longer.
    // Throws the store's error where it cannot get there.
    [[nodiscard]] bool make_durable(std::chrono::milliseconds at_most);
    // Fails, and returns when every step that was answered is on the disk, without a wait for room there. Throws the
    // store's error where one is lost.
    void close();
    [[nodiscard]] std::optional<Error> failure() const { return pipeline_->failure(); }
    [[nodiscard]] ServerStats stats() const;
    [[nodiscard]] std::vector<pipeline::BlockView> look() const { return pipeline_->look(); }
    // The engine of reads and writes, and if they go past the page cache.
    [[nodiscard]] std::pair<const char*, bool> io() const { return {pipeline_->io_name(), store_.direct()}; }

  private:
    ServerSettings settings_;
    store::Layout layout_;
    ServerMemory memory_;  // before the store: a budget that is too small leaves it alone
    store::ChunkStore store_;
    std::vector<std::string> findings_;
    std::atomic<bool> initialised_;
    std::unique_ptr<pipeline::SnapshotKeeper> keeper_;  // null unless snapshots are taken by themselves
    std::unique_ptr<pipeline::Pipeline> pipeline_;
};

}  // namespace luwu::fabric
