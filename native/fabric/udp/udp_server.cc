#include "fabric/udp/udp_server.h"

#include <algorithm>
#include <future>
#include <string>
#include <utility>

#include "fabric/core/arena.h"
#include "fabric/core/refusals.h"

namespace luwu::fabric {

namespace {

TcpSettings with_readers(TcpSettings settings, std::uint32_t workers) {
    settings.readers = workers;
    return settings;
}

std::unique_ptr<GradientBuffers> make_buffers(const ParameterServer& core) {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t block = 0; block < core.layout().block_count(); ++block) {
        const bool trainable = core.layout().shape().blocks[block].trainable;
        bytes.push_back(trainable ? core.memory().gradient_bytes(block) : 0);
    }
    return std::make_unique<GradientBuffers>(core.layout().shape(), core.settings().held, bytes,
                                             core.memory().plan().arena_bytes + kArenaSlackBytes, 0);
}

}  // namespace

UdpServer::UdpServer(ServerSettings server, const TcpSettings& tcp, const Address& bound, const UdpSettings& udp)
    : tasks_("luwu-3-pull"),
      side_(one_stream(server), with_readers(tcp, server.workers)),
      socket_(std::in_place, bound, udp),
      bound_(socket_->bound()) {
    buffers_ = make_buffers(side_.core());
}

// The pipeline gets the fp32 sum of all workers' gradients. It calls with its lock held.
ServerSettings UdpServer::one_stream(ServerSettings settings) {
    settings.one_stream = true;
    settings.gradient_dtype = kernels::Dtype::float32;
    settings.on_given_up = [this] { tasks_.post([this] { begin_epoch(); }); };
    return settings;
}

UdpServer::~UdpServer() {
    core().fail(pipeline::server_closed());  // its replies go to the tasks
    tasks_.stop();                           // they use the loop
    loop_.reset();
}

void UdpServer::start(Wiring wiring, const Address& child, const Address& group) {
    if (!socket_) throw Error(ErrorKind::order, "this server's network has been started already");
    wiring.workers = core().settings().workers;
    wiring.blocks = wire_blocks(side_.core().settings().shape);
    epoch_ = wiring.epoch;
    node_ = std::make_unique<ServerNode>(wiring, child, group, node_events());
    UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ = std::make_unique<NodeLoop>(std::move(socket), *node_, LoopSettings{"luwu-2-push"},
                                       [this](const std::exception_ptr& failure) {
                                           try {
                                               std::rethrow_exception(failure);
                                           } catch (const std::exception& error) {
                                               core().fail(Error(ErrorKind::server, error.what()));
                                           }
                                       });
    started_ = true;
    started_.notify_all();
}

NodeLoop& UdpServer::loop() {
    started_.wait(false);
    return *loop_;
}

// The node calls with the loop's lock held, the pipeline with its own: everything between them is a task.
ServerEvents UdpServer::node_events() {
    ServerEvents events;
    events.wanted = [this](std::uint64_t pull, std::uint32_t block) {
        tasks_.post([this, epoch = node_->epoch(), pull, block] {
            if (epoch != epoch_) return;
            core().pull(0, block, [this, epoch, pull, block](pipeline::Outcome outcome) {
                tasks_.post([=, this] { offer(epoch, pull, block, outcome); });
            });
        });
    };
    events.delivered = [this](std::uint32_t block) { tasks_.post([this, block] { core().release(block); }); };
    events.memory = [this](std::uint32_t block) -> float* {
        const auto place = buffers_->take(block);
        if (!place) return nullptr;
        collecting_.push_back(*place);
        return reinterpret_cast<float*>(buffers_->memory(*place));
    };
    events.collected = [this](std::uint32_t block, float*) {
        const std::uint32_t place = collecting_.front();
        collecting_.pop_front();
        tasks_.post([this, epoch = node_->epoch(), block, place] { push(epoch, block, place); });
    };
    events.broken = [this](const std::string& what) {
        tasks_.post([this, what] { core().fail(Error(ErrorKind::order, what)); });
    };
    return events;
}

void UdpServer::offer(std::uint32_t epoch, std::uint64_t pull, std::uint32_t block, pipeline::Outcome outcome) {
    if (!outcome.ok) return;
    const bool wanted = loop().call([&] {
        if (node_->epoch() != epoch) return false;
        node_->offer(pull, core().memory().window() + outcome.value);
        return true;
    });
    if (!wanted) core().release(block);
}

void UdpServer::push(std::uint32_t epoch, std::uint32_t block, std::uint32_t place) {
    const auto free = [this, place] { loop().call([&] { buffers_->free(place); }); };
    if (epoch != epoch_) return free();  // its step was given up meanwhile, and may have ended
    core().push(0, block, buffers_->memory(place), [this, free](pipeline::Outcome) { tasks_.post(free); });
}

// In the tasks' thread.
void UdpServer::drop_packets() {
    const std::vector<std::uint32_t> offered = loop().call([this] {
        for (const std::uint32_t place : std::exchange(collecting_, {})) buffers_->free(place);
        return node_->begin_epoch();
    });
    ++epoch_;
    for (const std::uint32_t block : offered) core().release(block);
}

// A worker gave the step up, or is lost: the others wait for packets that it will not send.
void UdpServer::begin_epoch() {
    if (!started_) return;
    drop_packets();
    core().epoch_begun();
}

void UdpServer::allow_worker(std::uint32_t rank, const Token& token) {
    side_.allow_worker(rank, token);
    core().joined(rank);
}

std::optional<std::uint64_t> UdpServer::lose_worker(std::uint32_t rank) {
    const std::lock_guard lock(losing_);
    auto dropped = std::make_shared<std::promise<void>>();
    const auto done = dropped->get_future();
    tasks_.post([this, dropped] {
        if (started_) drop_packets();
        dropped->set_value();
    });
    dropped.reset();
    done.wait();  // also ends where the tasks were stopped: they drop the promise
    return side_.lose_worker(rank);
}

UdpServer::Begun UdpServer::begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                                  const pipeline::GradientSettings& gradient) {
    check_network(started_);
    const std::lock_guard lock(losing_);
    // A step that nobody has given up has the epoch that it began with.
    const std::uint32_t epoch = epoch_;
    const auto begun = core().begin(worker, groups, gradient);
    if (begun.refusal) throw Error(*begun.refusal);
    return {begun.given_up, epoch, begun.ended};
}

void UdpServer::vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
    core().vote(worker, roll_back, pushes);
}

std::optional<pipeline::Outcome> UdpServer::wait_for_end(std::uint32_t worker, std::chrono::milliseconds at_most) {
    return core().wait_for_end(worker, at_most);
}

void UdpServer::leave(std::uint32_t worker) { core().leave(worker); }

std::optional<ServerNodeStats> UdpServer::node_stats() {
    if (!started_) return std::nullopt;
    return loop().call([this] { return node_->stats(); });
}

std::optional<UdpStats> UdpServer::socket_stats() {
    if (!started_) return std::nullopt;
    return loop().stats();
}

}  // namespace luwu::fabric
