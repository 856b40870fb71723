// The server of one host: a store, its pipeline, and the shared-memory fabric to its workers.
// Steps 2 and 3 of the pipeline run here: one thread for each of the two streams.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "fabric/streams.h"
#include "pipeline/pipeline.h"
#include "store/chunk_store.h"

namespace luwu::fabric {

struct ServerConfig {
    std::vector<std::string> folders;  // of the store's stripes; they exist
    store::Uuid uuid{};
    store::OpenMode mode = store::OpenMode::open;
    store::StoreShape shape;
    std::vector<bool> held;  // per block: held through the whole step (the root unit's)
    std::uint64_t memory_bytes = 0;
    std::uint32_t workers = 1;
    std::uint32_t optimizer_threads = 1;
};

class Server {
  public:
    explicit Server(ServerConfig config);  // throws Error as the store and the residency plan do
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    [[nodiscard]] bool initialised() const { return initialised_; }
    [[nodiscard]] const pipeline::ResidencyPlan& plan() const { return plan_; }
    void leave(std::uint32_t rank) { pipeline_->leave(rank); }  // the worker will make no more steps
    // Descriptors of control, window and the worker's arena; they stay the server's.
    [[nodiscard]] std::array<int, 3> files_of(std::uint32_t rank) const;
    void set_segments(std::uint32_t block, std::vector<pipeline::Segment> segments);
    void fail(const Error& error) { pipeline_->fail(error); }
    [[nodiscard]] std::optional<Error> failure() const { return pipeline_->failure(); }
    [[nodiscard]] pipeline::PipelineStats stats() const { return pipeline_->stats(); }
    [[nodiscard]] const char* io_name() const { return pipeline_->io_name(); }
    [[nodiscard]] bool direct_io() const { return store_.direct(); }

  private:
    void handle(std::uint32_t rank, Request& request);
    void handle_push(std::uint32_t rank, Request& request);
    void handle_initialise(std::uint32_t rank, Request& request);

    ServerConfig config_;
    store::Layout layout_;
    pipeline::ResidencyPlan plan_;
    store::ChunkStore store_;
    std::atomic<bool> initialised_;
    MemoryFile window_file_;
    std::vector<MemoryFile> arena_files_;
    Mapping window_;
    std::vector<Mapping> arenas_;
    std::unique_ptr<pipeline::Pipeline> pipeline_;
    Streams streams_;  // last: its threads end before the pipeline does
};

}  // namespace luwu::fabric
