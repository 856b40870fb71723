// The server of one host: a ParameterServer, and the shared-memory fabric to its workers.
// Steps 2 and 3 of the pipeline run here: one thread for each of the two streams.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "fabric/core/abandoned_blocks.h"
#include "fabric/core/parameter_server.h"
#include "fabric/shm/places.h"
#include "fabric/shm/streams.h"

namespace luwu::fabric {

class ShmServer {
  public:
    explicit ShmServer(ServerSettings settings);  // throws Error as the store and the residency plan do
    ~ShmServer();
    ShmServer(const ShmServer&) = delete;
    ShmServer& operator=(const ShmServer&) = delete;

    // Descriptors of control, window and the worker's arena; they stay the server's.
    [[nodiscard]] std::array<int, 3> files_of(std::uint32_t rank) const;
    [[nodiscard]] ParameterServer& core() { return *core_; }
    [[nodiscard]] const ParameterServer& core() const { return *core_; }

    [[nodiscard]] bool initialised() const { return core_->initialised(); }
    [[nodiscard]] const std::vector<std::string>& findings() const { return core_->findings(); }
    [[nodiscard]] const schedule::ResidencyPlan& plan() const { return core_->memory().plan(); }
    void leave(std::uint32_t rank) { core_->leave(rank); }  // the worker will make no more steps
    // The worker is gone: its rings are closed, and what it held is given back. Another may take its place.
    void lose(std::uint32_t rank);
    // Returns true once nothing of the lost worker is left at its place, or the run has failed; false: not in time.
    [[nodiscard]] bool wait_for_place(std::uint32_t rank, std::chrono::milliseconds at_most);
    // Another worker takes the place of a lost one, after wait_for_place. Its files are those of files_of.
    void take_place(std::uint32_t rank);
    void fail(const Error& error) { core_->fail(error); }
    void close() { core_->close(); }

  private:
    void handle(std::uint32_t rank, Request& request);
    void handle_begin(std::uint32_t rank, Request& request);
    void handle_pull(std::uint32_t rank, Request& request);
    [[nodiscard]] pipeline::Reply reply_later(std::uint32_t rank, Request& request);
    void handle_push(std::uint32_t rank, Request& request);
    void handle_initialise(std::uint32_t rank, Request& request);
    [[nodiscard]] bool within_arena(std::uint32_t rank, std::uint64_t offset, std::uint64_t bytes) const;

    std::vector<MemoryFile> arena_files_;
    std::vector<Mapping> arenas_;
    WorkerPlaces places_;
    AbandonedBlocks abandoned_;
    Streams streams_;
    std::unique_ptr<ParameterServer> core_;  // its last failure notice goes to the streams' memory
};

}  // namespace luwu::fabric
