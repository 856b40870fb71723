#include "fabric/udp/udp_worker.h"

#include <utility>

#include "fabric/core/refusals.h"

namespace luwu::fabric {

UdpWorker::UdpWorker(const TcpWorkerSettings& settings, std::vector<UdpSocket> sockets)
    : placement_(settings.placement) {
    for (std::uint32_t server = 0; server < sockets.size(); ++server) {
        blocks_.push_back(wire_blocks(placement_.part(settings.shape, server)));
        UdpPort::Events events;
        events.failed = [this](const Error& error) { remote_->fail(error); };
        events.interrupted = [this, server](std::deque<UdpPort::Pull> pulls) { interrupted(server, std::move(pulls)); };
        trees_.push_back(std::make_unique<Tree>(std::move(sockets[server]), std::move(events)));
    }
    TcpWorkerSettings with_path = settings;
    with_path.step_path = this;
    remote_ = std::make_unique<TcpWorker>(with_path);
}

UdpWorker::~UdpWorker() {
    remote_->close();
    for (const auto& tree : trees_) tree->port.stop();  // they write to the other's memory
}

void UdpWorker::start(std::uint32_t server, Wiring wiring, const Address& parent, std::uint16_t child,
                      const Address& group) {
    wiring.blocks = blocks_[server];
    trees_[server]->port.start(wiring, parent, child, group);
}

void UdpWorker::begin_step(std::uint32_t server, std::uint32_t epoch, bool given_up) {
    Tree& tree = *trees_[server];
    check_network(tree.port.started());
    tree.port.call([&] {
        tree.port.enter_epoch(epoch);
        tree.in_step = true;
        tree.given_up = given_up || tree.port.epoch() > epoch;  // the newer one may have overtaken the answer
    });
}

void UdpWorker::end_step() {
    for (const auto& tree : trees_) tree->port.call([&tree] { tree->in_step = false; });
}

bool UdpWorker::pull(const Piece& piece, std::span<std::byte> into, Done& done) {
    Tree& tree = *trees_[piece.server];
    if (!tree.port.started()) return false;
    return tree.port.call([&] {
        if (!tree.in_step || tree.given_up) return false;
        tree.port.pull({piece.block, into, std::move(done)});
        return true;
    });
}

void UdpWorker::push(const Piece& piece, const std::byte* gradient, Done done) {
    Tree& tree = *trees_[piece.server];
    if (!tree.port.started()) return remote_->fail(Error(ErrorKind::order, "a push came before the network did"));
    auto exponents = exponents_of(gradient, blocks_[piece.server][piece.block].dtype, piece.elements);
    tree.port.call([&] {
        if (!tree.in_step || tree.given_up) return tree.port.post([done = std::move(done)] { done(true); });
        tree.port.push(piece.block, gradient, std::move(exponents), std::move(done));
    });
}

void UdpWorker::interrupted(std::uint32_t server, std::deque<UdpPort::Pull> pulls) {
    Tree& tree = *trees_[server];
    tree.given_up = true;
    for (UdpPort::Pull& pull : pulls) {
        tree.port.post([this, server, pull = std::move(pull)]() mutable {
            remote_->read(placement_.piece(server, pull.block), pull.into, std::move(pull.done));
        });
    }
}

}  // namespace luwu::fabric
