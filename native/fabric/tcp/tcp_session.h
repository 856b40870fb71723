// The server's side of one connection of a worker: its pulls, or its pushes and first values.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "fabric/core/gradient_buffers.h"
#include "fabric/core/parameter_server.h"
#include "fabric/tcp/frames.h"

namespace luwu::fabric {

struct TcpConnection {
    TcpConnection(Descriptor socket, const TlsContext* tls) : channel(std::move(socket), bell, tls, "") {}
    Bell bell;
    Channel channel;
};

// The server's record of a worker, as long as it is a member of the job, however often its connections break.
struct TcpMember {
    TcpMember(const ParameterServer& core, std::uint32_t rank);
    void abort_connections();  // with the mutex held
    void ring_pushes();

    std::uint32_t rank;
    GradientBuffers buffers;
    std::mutex mutex;
    std::condition_variable left;                          // a connection is active no more
    std::optional<Token> token;                            // none: nobody announced this worker
    std::uint64_t incarnation = 0;                         // 0: it has not said hello yet
    std::array<std::shared_ptr<TcpConnection>, 2> active;  // by Stream
    // Each used by the one connection that is active on its stream.
    std::uint64_t asked = 0;  // sequence of the last pull that was passed on
    std::uint64_t taken = 0;  // sequence of the last request on the gradients' stream that was taken
};

class TcpSession {
  public:
    using Abandon = std::function<void(std::uint32_t block)>;
    struct Rules {
        bool trains;  // pulls and pushes of steps come here
        Timing timing;
    };

    // `abandon` is called, with the pipeline's lock held, for a block that nobody will release any more.
    TcpSession(ParameterServer& core, TcpMember& member, std::shared_ptr<TcpConnection> connection,
               const std::atomic<bool>& failed, const Rules& rules, Abandon abandon);
    // Serves until the server has failed, which the worker is then told. Throws Broken or Dropped.
    void serve(Stream stream);

  private:
    [[nodiscard]] std::optional<Frame> next_request();
    void serve_pull(const Frame& frame);
    void serve_push(const Frame& frame);
    void serve_initialise(const Frame& frame);
    void receive(std::span<std::byte> into);
    void answer(const Frame& frame, std::span<const std::byte> payload = {});
    void tell_failure();

    ParameterServer& core_;
    TcpMember& member_;
    std::shared_ptr<TcpConnection> connection_;
    Channel& channel_;
    const std::atomic<bool>& failed_;
    Rules rules_;
    Abandon abandon_;
    FrameReader reader_;
    FrameWriter writer_;
};

}  // namespace luwu::fabric
