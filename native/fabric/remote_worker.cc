#include "fabric/remote_worker.h"

#include <string>
#include <utility>

namespace luwu::fabric {

namespace {

std::vector<std::uint64_t> parameter_bytes(const store::StoreShape& shape) {
    std::vector<std::uint64_t> bytes;
    for (const store::BlockShape& block : shape.blocks) {
        bytes.push_back(block.elements * kernels::size_of(shape.parameter_dtype));
    }
    return bytes;
}

FrameKind kind_of(Operation operation) {
    if (operation == Operation::push) return FrameKind::push;
    return operation == Operation::initialise ? FrameKind::initialise : FrameKind::finish_initialise;
}

}  // namespace

RemoteWorker::RemoteWorker(const RemoteConfig& config) : RemoteWorker(config, store::Layout(config.shape, 1)) {}

RemoteWorker::RemoteWorker(const RemoteConfig& config, const store::Layout& layout)
    : RemoteWorker(config, pipeline::plan_minimum(layout, 1, config.held)) {}

RemoteWorker::RemoteWorker(const RemoteConfig& config, const pipeline::ResidencyPlan& plan)
    : shape_(config.shape),
      step_path_(config.step_path),
      arena_file_("luwu-arena", arena_file_bytes(shape_, plan)),
      arena_(arena_file_.descriptor(), MapMode::shared),
      streams_(1, window_bytes_of_blocks(shape_)),
      window_(plan, parameter_bytes(shape_),
              [this](std::uint32_t block, bool alone, std::span<std::byte> into) { fetch(block, alone, into); }),
      link_(config.link, [this](const Error& error) { fail(error); }) {
    streams_.control().gradient_bytes = plan.arena_bytes;
    link_.start();
    streams_.start([this](std::uint32_t, Request& request) { handle(request); });
}

void RemoteWorker::close() {
    fail(Error(ErrorKind::server, "the connection to the server was closed here"));
    streams_.stop();
    link_.stop();
}

bool RemoteWorker::wait_connected(std::chrono::milliseconds at_most) {
    const bool connected = link_.wait_connected(at_most);
    if (const auto error = failure()) throw *error;
    return connected;
}

std::array<int, 3> RemoteWorker::files() const {
    return {streams_.descriptor(), window_.descriptor(), arena_file_.descriptor()};
}

std::unique_ptr<Endpoint> RemoteWorker::endpoint(MapMode window_mode) const {
    return std::make_unique<Endpoint>(
        EndpointFiles{streams_.descriptor(), window_.descriptor(), arena_file_.descriptor(), -1}, 0, window_mode);
}

void RemoteWorker::fail(const Error& error) {
    {
        const std::lock_guard lock(mutex_);
        if (failure_) return;
        failure_ = error;
        streams_.announce_failure(error);
    }
    window_.fail();
    link_.ask_to_stop();
}

std::optional<Error> RemoteWorker::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

void RemoteWorker::fetch(std::uint32_t block, bool alone, std::span<std::byte> into) {
    StepPath::Done done = [this, block](bool ok) { window_.fetched(block, ok); };
    if (step_path_ == nullptr) return link_.post({FrameKind::pull, block, {}, into, std::move(done)});
    if (alone || !step_path_->pull(block, into, done)) read(block, into, std::move(done));
}

void RemoteWorker::read(std::uint32_t block, std::span<std::byte> into, StepPath::Done done) {
    link_.post({FrameKind::read, block, {}, into, std::move(done)});
}

void RemoteWorker::handle(Request& request) {
    if (request.block >= shape_.blocks.size()) {
        fail(Error(ErrorKind::invalid, "the worker named block " + std::to_string(request.block) + " of " +
                                           std::to_string(shape_.blocks.size())));
        return Streams::reply(request, false);
    }
    switch (request.operation) {
        case Operation::pull:
            return window_.pull(request.block, request.flag != 0,
                                [&request](bool ok, std::int64_t offset) { Streams::reply(request, ok, offset); });
        case Operation::release:
            return handle_release(request);
        case Operation::push:
        case Operation::initialise:
        case Operation::finish_initialise:
            return handle_send(request);
        case Operation::begin:
        case Operation::commit:
            fail(Error(ErrorKind::order, "over a network a step begins and ends through the control plane"));
            return Streams::reply(request, false);
    }
}

void RemoteWorker::handle_release(Request& request) {
    const bool held = window_.release(request.block);
    if (!held) fail(Error(ErrorKind::order, "block " + std::to_string(request.block) + " was released but not held"));
    Streams::reply(request, held);
}

void RemoteWorker::handle_send(Request& request) {
    const store::BlockShape& block = shape_.blocks[request.block];
    const bool pushes = request.operation == Operation::push;
    std::uint64_t bytes = 0;
    if (request.operation != Operation::finish_initialise) {
        bytes = block.elements * (pushes ? kernels::size_of(shape_.parameter_dtype) : sizeof(float));
    }
    if (request.argument > arena_.bytes() || bytes > arena_.bytes() - request.argument ||
        (pushes && !block.trainable)) {
        fail(Error(ErrorKind::invalid,
                   "the worker sent block '" + block.name + "', which is frozen or does not fit its arena there"));
        return Streams::reply(request, false);
    }
    const std::byte* data = arena_.data() + request.argument;
    StepPath::Done done = [&request](bool ok) { Streams::reply(request, ok); };
    if (pushes && step_path_ != nullptr) return step_path_->push(request.block, data, std::move(done));
    link_.post({kind_of(request.operation), request.block, {data, bytes}, {}, std::move(done)});
}

}  // namespace luwu::fabric
