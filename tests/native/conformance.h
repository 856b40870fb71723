// A job of small_shape over any transport, driven through the public classes: test_conformance.cc runs against it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fabric/protocol/packet.h"
#include "fabric/protocol/server_node.h"
#include "fabric/protocol/wiring.h"
#include "network.h"

namespace luwu::test {

enum class Transport { shared_memory, tcp, udp };
// All; or UDP alone, where switches are to be in the kernel. Then participants are on hosts of their own.
[[nodiscard]] std::span<const Transport> transports();
[[nodiscard]] const char* name_of(Transport transport);

using Groups = std::vector<pipeline::GroupSettings>;
inline const Groups kGroups{{0.01, 0.9, 0.999, 1e-8, 0.1}};

struct JobOptions {
    std::string folder;
    Dtypes dtype = kernels::Dtype::float32;
    std::uint32_t workers = 2;
    std::uint64_t memory_bytes = std::uint64_t{1} << 28;
    // Over UDP: children of a switch at most; 0: none, for a job of one worker. And the gradients' form.
    std::uint32_t fan_in = 8;
    luwu_form form = LUWU_INT32;
    fabric::Address group = {};  // that parameters go to; none: switches copy them
};

// A server and its workers, and what the control plane does between them: beginning and ending steps.
class TestJob {
  public:
    virtual ~TestJob() = default;

    [[nodiscard]] virtual fabric::ParameterServer& core() = 0;
    [[nodiscard]] virtual fabric::Endpoint& endpoint(std::uint32_t rank) = 0;
    virtual void begin(std::uint32_t rank, const Groups& groups) = 0;
    virtual void vote(std::uint32_t rank, bool roll_back) = 0;
    // 1: committed, 0: rolled back. Nothing: not within this time.
    [[nodiscard]] virtual std::optional<std::int64_t> outcome(std::uint32_t rank,
                                                              std::chrono::milliseconds at_most) = 0;
    virtual void leave(std::uint32_t rank) = 0;
    virtual void close_server() = 0;

    [[nodiscard]] std::int64_t wait_outcome(std::uint32_t rank);
    [[nodiscard]] std::uint32_t workers() const { return static_cast<std::uint32_t>(pushes_.size()); }
    [[nodiscard]] const store::StoreShape& shape() const { return shape_; }

    void initialise();  // by worker 0
    // A gradient of gradient_value() at one of two places of the worker's arena, in turn: wait for every other push.
    fabric::Handle push(std::uint32_t rank, std::uint64_t step, std::uint32_t block, bool spoil = false);
    std::int64_t pull(std::uint32_t rank, std::uint32_t block);  // waits; the offset in the window
    // The parameters of a block, as the worker finds them, released again.
    [[nodiscard]] std::vector<std::byte> read(std::uint32_t rank, std::uint32_t block);
    // The whole step of one worker: forward, and backward with pushes; pulls one block ahead.
    std::int64_t step(std::uint32_t rank, std::uint64_t number, bool roll_back = false, bool spoil = false);
    // Runs for every worker in a thread of its own; an error fails the test.
    void all(const std::function<void(std::uint32_t rank)>& work) const;
    void train(std::uint64_t first_step, std::uint64_t last_step);

  protected:
    explicit TestJob(const JobOptions& options);
    [[nodiscard]] std::uint64_t pushes(std::uint32_t rank) const { return pushes_[rank]; }
    void forget_pushes(std::uint32_t rank) { pushes_[rank] = 0; }

  private:
    store::StoreShape shape_;
    std::vector<std::uint64_t> pushes_;  // per worker
};

// A job over UDP, which has sockets besides, in this order: the server's, the workers', the switches'.
class UdpTestJob : public TestJob {
  public:
    using TestJob::TestJob;
    virtual void lose(std::uint32_t rank) = 0;
    virtual void join(std::uint32_t rank) = 0;  // another worker takes the place; waits until it may
    [[nodiscard]] virtual std::vector<fabric::Address> sockets() const = 0;
    [[nodiscard]] virtual std::vector<fabric::PacketDrops> drops() = 0;
    [[nodiscard]] virtual fabric::ServerNodeStats server_stats() = 0;
    [[nodiscard]] virtual std::uint64_t copies() = 0;  // that switches sent down
};
[[nodiscard]] fabric::ServerSettings settings_of(const JobOptions& options);
[[nodiscard]] std::unique_ptr<UdpTestJob> make_udp_job(const JobOptions& options);
inline constexpr std::uint64_t kPacketKey = 0xfedcba9876543210;

[[nodiscard]] std::unique_ptr<TestJob> make_job(Transport transport, const JobOptions& options);

// First contents of small_shape's blocks, as their dtype.
[[nodiscard]] std::vector<std::byte> first_parameters(const store::StoreShape& shape, std::uint32_t block);
// Returns expected_contents() with gradients that were summed over the wire in fixed point of this form, as
// kernels/fixed_point.h defines it.
[[nodiscard]] std::vector<BlockContents> expected_over_udp(const Dtypes& dtypes, std::uint32_t workers,
                                                           std::uint64_t steps, luwu_form form = LUWU_INT32);

}  // namespace luwu::test
