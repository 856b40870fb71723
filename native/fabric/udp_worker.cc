#include "fabric/udp_worker.h"

#include <utility>

namespace luwu::fabric {

UdpWorker::UdpWorker(const RemoteConfig& config, UdpSocket socket)
    : shape_(config.shape),
      port_(std::move(socket), {[this](const Error& error) { remote_->fail(error); },
                                [this](std::deque<UdpPort::Pull> pulls) { interrupted(std::move(pulls)); }}) {
    RemoteConfig with_path = config;
    with_path.step_path = this;
    remote_ = std::make_unique<RemoteWorker>(with_path);
}

UdpWorker::~UdpWorker() {
    remote_->close();
    port_.stop();  // it writes to the other's memory
}

void UdpWorker::start(Wiring wiring, const Address& parent, std::uint16_t child, const Address& group) {
    wiring.parameter_dtype = shape_.parameter_dtype;
    wiring.blocks = wire_blocks(shape_);
    port_.start(wiring, parent, child, group);
}

void UdpWorker::begin_step(std::uint32_t epoch, bool given_up) {
    if (!port_.started()) throw Error(ErrorKind::order, "a step began before the network did");
    port_.call([&] {
        port_.enter_epoch(epoch);
        in_step_ = true;
        given_up_ = given_up || port_.epoch() > epoch;  // the newer one may have been heard of before the answer was
    });
}

void UdpWorker::end_step() {
    port_.call([this] { in_step_ = false; });
}

bool UdpWorker::pull(std::uint32_t block, std::span<std::byte> into, Done& done) {
    if (!port_.started()) return false;
    return port_.call([&] {
        if (!in_step_ || given_up_) return false;
        port_.pull({block, into, std::move(done)});
        return true;
    });
}

void UdpWorker::push(std::uint32_t block, const std::byte* gradient, Done done) {
    if (!port_.started()) return remote_->fail(Error(ErrorKind::order, "a push came before the network did"));
    auto exponents = exponents_of(gradient, shape_.parameter_dtype, shape_.blocks[block].elements);
    port_.call([&] {
        if (!in_step_ || given_up_) return port_.post([done = std::move(done)] { done(true); });
        port_.push(block, gradient, std::move(exponents), std::move(done));
    });
}

void UdpWorker::interrupted(std::deque<UdpPort::Pull> pulls) {
    given_up_ = true;
    for (UdpPort::Pull& pull : pulls) {
        port_.post(
            [this, pull = std::move(pull)]() mutable { remote_->read(pull.block, pull.into, std::move(pull.done)); });
    }
}

}  // namespace luwu::fabric
