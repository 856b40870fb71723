#include "fabric/tcp/tcp_session.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "fabric/core/arena.h"
#include "fabric/core/refusals.h"

namespace luwu::fabric {

namespace {

// A pull on its way through the pipeline, which may take longer than the connection lasts.
class PendingPull {
  public:
    PendingPull(ParameterServer& core, std::uint32_t block, TcpSession::Abandon abandon,
                std::shared_ptr<TcpConnection> connection)
        : core_(core), block_(block), shared_(std::make_shared<Shared>()) {
        shared_->abandon = std::move(abandon);
        shared_->connection = std::move(connection);
    }
    ~PendingPull() {
        State waiting = State::waiting;
        if (shared_->state.compare_exchange_strong(waiting, State::abandoned)) return;
        if (shared_->outcome.ok) core_.release(block_);
    }
    PendingPull(const PendingPull&) = delete;
    PendingPull& operator=(const PendingPull&) = delete;

    [[nodiscard]] pipeline::Reply reply() const {
        return [shared = shared_, block = block_](pipeline::Outcome outcome) {
            shared->outcome = outcome;
            State waiting = State::waiting;
            if (shared->state.compare_exchange_strong(waiting, State::answered)) {
                shared->connection->bell.ring();
            } else if (outcome.ok) {
                shared->abandon(block);
            }
        };
    }

    [[nodiscard]] pipeline::Outcome wait() const {
        while (shared_->state == State::waiting) shared_->connection->channel.wait_for_bell();
        return shared_->outcome;
    }

  private:
    enum class State { waiting, answered, abandoned };
    struct Shared {
        std::atomic<State> state{State::waiting};
        pipeline::Outcome outcome;
        TcpSession::Abandon abandon;
        std::shared_ptr<TcpConnection> connection;
    };

    ParameterServer& core_;
    std::uint32_t block_;
    std::shared_ptr<Shared> shared_;
};

std::vector<std::uint64_t> gradient_bytes(const ParameterServer& core) {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t block = 0; block < core.layout().block_count(); ++block) {
        bytes.push_back(core.memory().gradient_bytes(block));
    }
    return bytes;
}

}  // namespace

TcpMember::TcpMember(const ParameterServer& core, std::uint32_t rank)
    : rank(rank),
      buffers(core.layout().shape(), core.settings().held, gradient_bytes(core),
              arena_file_bytes(core.layout().shape(), core.memory().plan()), rank) {}

void TcpMember::abort_connections() {
    for (const auto& connection : active) {
        if (connection != nullptr) connection->channel.abort();
    }
}

void TcpMember::ring_pushes() {
    const std::lock_guard lock(mutex);
    const auto& connection = active[static_cast<std::size_t>(Stream::gradients)];
    if (connection != nullptr) connection->bell.ring();
}

TcpSession::TcpSession(ParameterServer& core, TcpMember& member, std::shared_ptr<TcpConnection> connection,
                       const std::atomic<bool>& failed, const Rules& rules, Abandon abandon)
    : core_(core),
      member_(member),
      connection_(std::move(connection)),
      channel_(connection_->channel),
      failed_(failed),
      rules_(rules),
      abandon_(std::move(abandon)) {}

void TcpSession::serve(Stream stream) {
    const std::uint64_t taken = stream == Stream::gradients ? member_.taken : 0;
    answer({FrameKind::welcome, 0, taken, 0});
    while (const auto frame = next_request()) {
        const bool pulls = frame->kind == FrameKind::pull || frame->kind == FrameKind::read;
        const bool pushes = frame->kind == FrameKind::push || frame->kind == FrameKind::initialise ||
                            frame->kind == FrameKind::finish_initialise;
        const bool of_step = frame->kind == FrameKind::pull || frame->kind == FrameKind::push;
        if (frame->block >= core_.layout().block_count() || (stream == Stream::parameters ? !pulls : !pushes) ||
            (of_step && !rules_.trains)) {
            throw Dropped(Drop::malformed);
        }
        if (pulls) {
            serve_pull(*frame);
        } else if (frame->sequence != member_.taken + 1) {
            throw Dropped(Drop::malformed);
        } else if (frame->kind == FrameKind::push) {
            serve_push(*frame);
        } else {
            serve_initialise(*frame);
        }
    }
    tell_failure();
}

// Returns nothing if the server has failed.
std::optional<Frame> TcpSession::next_request() {
    while (!failed_) {
        if (auto frame = reader_.read_header(channel_)) return frame;
        channel_.wait(false);
    }
    return std::nullopt;
}

void TcpSession::serve_pull(const Frame& frame) {
    if (frame.bytes != 0) throw Dropped(Drop::oversized);
    const PendingPull pull(core_, frame.block, abandon_, connection_);
    // A request that comes again after a break has had its place in the pass already.
    if (frame.kind == FrameKind::pull && frame.sequence > member_.asked) {
        member_.asked = frame.sequence;
        core_.pull(member_.rank, frame.block, pull.reply());
    } else {
        core_.read(frame.block, pull.reply());
    }
    const pipeline::Outcome outcome = pull.wait();
    if (!outcome.ok) return;  // next_request() sees the failure
    const std::uint64_t bytes = core_.memory().parameter_bytes(frame.block);
    answer({FrameKind::parameters, frame.block, frame.sequence, bytes},
           {core_.memory().window() + outcome.value, bytes});
}

void TcpSession::serve_push(const Frame& frame) {
    if (!core_.layout().shape().blocks[frame.block].trainable) throw Dropped(Drop::malformed);
    if (frame.bytes != core_.memory().gradient_bytes(frame.block)) throw Dropped(Drop::oversized);
    std::optional<std::uint32_t> place;
    // A failure gives the buffers of other pushes back before this session is told of it: a push that finds one then is
    // not taken any more.
    while (!(place = member_.buffers.take(frame.block)) || core_.failure()) {
        if (place) member_.buffers.free(*place);
        if (failed_) return;
        channel_.wait_for_bell();
    }
    std::byte* gradient = member_.buffers.memory(*place);
    try {
        receive({gradient, frame.bytes});
    } catch (...) {
        member_.buffers.free(*place);
        throw;
    }
    member_.taken = frame.sequence;
    core_.push(member_.rank, frame.block, gradient, [&member = member_, place = *place](pipeline::Outcome) {
        member.buffers.free(place);
        member.ring_pushes();
    });
    answer({FrameKind::taken, frame.block, frame.sequence, 0});
}

void TcpSession::serve_initialise(const Frame& frame) {
    const bool finishes = frame.kind == FrameKind::finish_initialise;
    const std::uint64_t bytes = finishes ? 0 : core_.layout().shape().blocks[frame.block].elements * sizeof(float);
    if (frame.bytes != bytes) throw Dropped(Drop::oversized);
    try {
        check_no_values(core_.initialised());
        if (!member_.buffers.all_free()) throw Dropped(Drop::malformed);
        if (finishes) {
            core_.finish_initialise();
            member_.buffers.discard();  // fp32 first values may take more than gradients, which the budget counts
        } else {
            receive({member_.buffers.whole(), bytes});
            core_.initialise(frame.block, reinterpret_cast<const float*>(member_.buffers.whole()));
        }
    } catch (const Error& error) {
        return core_.fail(error);
    }
    member_.taken = frame.sequence;
    answer({FrameKind::taken, frame.block, frame.sequence, 0});
}

void TcpSession::receive(std::span<std::byte> into) {
    while (!reader_.read_payload(channel_, into)) channel_.wait(false);
}

void TcpSession::answer(const Frame& frame, std::span<const std::byte> payload) {
    writer_.start(frame, payload);
    writer_.write(channel_);
}

void TcpSession::tell_failure() {
    const auto error = core_.failure();
    if (!error) return;
    const std::string text = std::string(error->what()).substr(0, kMostFailureBytes);
    channel_.limit(Clock::now() + rules_.timing.farewell);
    answer({FrameKind::failure, static_cast<std::uint32_t>(error->kind()), 0, text.size()},
           std::as_bytes(std::span(text)));
    channel_.finish(Clock::now() + rules_.timing.farewell);
}

}  // namespace luwu::fabric
