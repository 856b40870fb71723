// A worker on another host than its servers: serves this process's fabric::Endpoint from memory of its own, and fetches
// and sends over TCP. A step's beginning and its votes go through the control plane instead.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "fabric/core/parameter_buffers.h"
#include "fabric/core/placement.h"
#include "fabric/shm/endpoint.h"
#include "fabric/shm/streams.h"
#include "fabric/tcp/tcp_link.h"

namespace luwu::fabric {

// Another transport for the data of a training step. Functions must not wait.
class StepPath {
  public:
    using Done = std::function<void(bool ok)>;
    virtual ~StepPath() = default;
    // Pulls the whole piece into this memory. Returns false if the pull belongs to no step.
    virtual bool pull(const Piece& piece, std::span<std::byte> into, Done& done) = 0;
    virtual void push(const Piece& piece, const std::byte* gradient, Done done) = 0;
};

struct TcpWorkerSettings {
    store::StoreShape shape;             // of the whole model; the chunk size does not matter
    std::vector<bool> held;              // per block
    std::vector<TcpLinkSettings> links;  // to each server
    Placement placement;
    std::vector<bool> initialised = {};           // per server, if several: has first values, so that it takes none
    StepPath* step_path = nullptr;                // none: all goes over TCP
    MapMode window_mode = MapMode::private_copy;  // how its endpoint maps parameters
};

class TcpWorker {
  public:
    explicit TcpWorker(const TcpWorkerSettings& settings);  // throws Error(invalid); connects in threads of its own
    ~TcpWorker() { close(); }
    TcpWorker(const TcpWorker&) = delete;
    TcpWorker& operator=(const TcpWorker&) = delete;

    // True if it is connected to all servers within this time. Throws Error once it has failed.
    [[nodiscard]] bool wait_connected(std::chrono::milliseconds at_most);
    [[nodiscard]] std::unique_ptr<Endpoint> endpoint() const;
    // Pulls over TCP what belongs to no step.
    void read(const Piece& piece, std::span<std::byte> into, StepPath::Done done);
    void fail(const Error& error);  // whoever waits raises it; the first one counts
    void close();                   // the same, that it was closed here; ends all threads
    [[nodiscard]] std::optional<Error> failure() const;
    [[nodiscard]] TcpLinkStats stats() const;  // of all links
    // Time since a connection of each link broke; 0: both are there.
    [[nodiscard]] std::vector<std::chrono::milliseconds> broken_for() const;
    [[nodiscard]] std::vector<std::chrono::milliseconds> silent_for() const;  // see TcpLink

  private:
    TcpWorker(const TcpWorkerSettings& settings, const store::Layout& layout);
    TcpWorker(const TcpWorkerSettings& settings, const schedule::ResidencyPlan& plan);
    void fetch(std::uint32_t block, bool alone, std::span<std::byte> into);
    void handle(Request& request);
    void handle_release(Request& request);
    void handle_push(Request& request);
    void handle_initialise(Request& request);
    void finish_initialise(Request& request, std::uint32_t server);  // and those behind it, one by one
    // A block's bytes in the arena; nothing, having failed, where they are not there.
    [[nodiscard]] std::optional<std::span<const std::byte>> sent(const Request& request, std::uint64_t bytes);
    // The piece's part of a whole block's parameters or gradient.
    template <class Byte>
    [[nodiscard]] std::span<Byte> part_of(std::span<Byte> whole, std::uint32_t block, const Piece& piece) const {
        const std::uint64_t size = kernels::size_of(shape_.blocks[block].dtype);
        return whole.subspan(piece.first * size, piece.elements * size);
    }
    [[nodiscard]] bool takes_values(std::uint32_t server) const {
        return initialised_.empty() || !initialised_[server];
    }

    store::StoreShape shape_;
    Placement placement_;
    std::vector<bool> initialised_;
    StepPath* step_path_;
    MapMode window_mode_;
    MemoryFile arena_file_;
    Mapping arena_;
    Streams streams_;
    mutable std::mutex mutex_;
    std::optional<Error> failure_;
    ParameterBuffers window_;
    std::vector<std::unique_ptr<TcpLink>> links_;
};

}  // namespace luwu::fabric
