#include "fabric/udp/udp_port.h"

#include "kernels/fixed_point.h"

namespace luwu::fabric {

UdpPort::UdpPort(UdpSocket socket, Events events)
    : events_(std::move(events)), socket_(std::move(socket)), bound_(socket_->bound()), tasks_("luwu-udp-done") {}

void UdpPort::stop() {
    started_ = false;
    loop_.reset();
    tasks_.stop();
}

void UdpPort::start(const Wiring& wiring, const Address& parent, std::uint16_t child, const Address& group) {
    if (!socket_) throw Error(ErrorKind::order, "this worker's network has been started already");
    auto node = std::make_unique<WorkerNode>(wiring, parent, child, node_events());
    if (group.known()) socket_->join(group);
    node_ = std::move(node);
    UdpSocket socket = std::move(*socket_);
    socket_.reset();
    loop_ =
        std::make_unique<NodeLoop>(std::move(socket), *node_, LoopSettings{"luwu-udp"},
                                   [this](const std::exception_ptr& failure) { events_.failed(error_of(failure)); });
    started_ = true;
}

void UdpPort::pull(Pull pull) {
    node_->pull(pull.block, pull.into.data());
    pulls_.push_back(std::move(pull));
}

void UdpPort::push(std::uint32_t block, const std::byte* gradient, std::vector<std::uint8_t> exponents, Done done) {
    node_->push(block, gradient, std::move(exponents));
    pushes_.push_back(std::move(done));
}

// Called with the loop's lock held; what waits for a pull or push has locks of its own.
WorkerEvents UdpPort::node_events() {
    WorkerEvents events;
    events.pulled = [this] {
        tasks_.post([done = std::move(pulls_.front().done)] { done(true); });
        pulls_.pop_front();
    };
    events.pushed = [this] {
        tasks_.post([done = std::move(pushes_.front())] { done(true); });
        pushes_.pop_front();
    };
    events.interrupted = [this] {
        for (Done& done : std::exchange(pushes_, {})) {
            tasks_.post([done = std::move(done)] { done(true); });
        }
        events_.interrupted(std::exchange(pulls_, {}));
    };
    return events;
}

std::optional<WorkerNodeStats> UdpPort::node_stats() {
    if (!started_) return std::nullopt;
    return loop_->call([this] { return node_->stats(); });
}

std::optional<UdpStats> UdpPort::socket_stats() {
    if (!started_) return std::nullopt;
    return loop_->stats();
}

std::vector<std::uint8_t> exponents_of(const std::byte* gradient, kernels::Dtype dtype, std::uint64_t elements) {
    std::vector<std::uint8_t> exponents(kernels::fixed_groups(elements));
    kernels::fixed_exponents(gradient, dtype, elements, exponents.data());
    return exponents;
}

Error error_of(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& error) {
        return {ErrorKind::server, error.what()};
    }
}

}  // namespace luwu::fabric
