#include "fabric/tcp/tcp_worker.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "fabric/core/arena.h"
#include "fabric/core/refusals.h"

namespace luwu::fabric {

namespace {

// Returns a function that calls `done` when it was called `count` times: with false if one call was.
StepPath::Done when_all(std::size_t count, StepPath::Done done) {
    struct Joint {
        std::atomic<std::size_t> left;
        std::atomic<bool> ok;
        StepPath::Done done;
    };
    std::shared_ptr<Joint> joint(new Joint{count, true, std::move(done)});
    return [joint = std::move(joint)](bool ok) {
        if (!ok) joint->ok = false;
        if (--joint->left == 0) joint->done(joint->ok);
    };
}

}  // namespace

TcpWorker::TcpWorker(const TcpWorkerSettings& settings) : TcpWorker(settings, store::Layout(settings.shape, 1)) {}

TcpWorker::TcpWorker(const TcpWorkerSettings& settings, const store::Layout& layout)
    : TcpWorker(settings, schedule::plan_minimum(layout, 1, settings.held)) {}

TcpWorker::TcpWorker(const TcpWorkerSettings& settings, const schedule::ResidencyPlan& plan)
    : shape_(settings.shape),
      placement_(settings.placement),
      initialised_(settings.initialised),
      step_path_(settings.step_path),
      window_mode_(settings.window_mode),
      arena_file_("luwu-arena", arena_file_bytes(shape_, plan)),
      arena_(arena_file_.descriptor(), MapMode::shared),
      streams_(1, bytes_of_blocks(shape_)),
      window_(plan, settings.held, bytes_of_blocks(shape_), window_mode_,
              [this](std::uint32_t block, bool alone, std::span<std::byte> into) { fetch(block, alone, into); }) {
    for (const TcpLinkSettings& link : settings.links) {
        links_.push_back(std::make_unique<TcpLink>(link, [this](const Error& error) { fail(error); }));
    }
    streams_.control().gradient_bytes = plan.arena_bytes;
    for (const auto& link : links_) link->start();
    streams_.start([this](std::uint32_t, Request& request) { handle(request); });
}

void TcpWorker::close() {
    fail(Error(ErrorKind::server, "the connection to the server was closed here"));
    streams_.stop();
    for (const auto& link : links_) link->stop();
}

bool TcpWorker::wait_connected(std::chrono::milliseconds at_most) {
    const auto deadline = Clock::now() + at_most;
    const bool connected =
        std::all_of(links_.begin(), links_.end(), [&](const auto& link) { return link->wait_connected(deadline); });
    if (const auto error = failure()) throw *error;
    return connected;
}

std::unique_ptr<Endpoint> TcpWorker::endpoint() const {
    return std::make_unique<Endpoint>(
        EndpointFiles{streams_.descriptor(), window_.descriptor(), arena_file_.descriptor(), -1}, 0, window_mode_);
}

void TcpWorker::fail(const Error& error) {
    {
        const std::lock_guard lock(mutex_);
        if (failure_) return;
        failure_ = error;
        streams_.announce_failure(error);
    }
    window_.fail();
    for (const auto& link : links_) link->ask_to_stop();
}

TcpLinkStats TcpWorker::stats() const {
    TcpLinkStats all;
    for (const auto& link : links_) {
        const TcpLinkStats one = link->stats();
        all.bytes_received += one.bytes_received;
        all.bytes_sent += one.bytes_sent;
        all.reconnects += one.reconnects;
    }
    return all;
}

std::vector<std::chrono::milliseconds> TcpWorker::broken_for() const {
    std::vector<std::chrono::milliseconds> all;
    for (const auto& link : links_) all.push_back(link->broken_for());
    return all;
}

std::vector<std::chrono::milliseconds> TcpWorker::silent_for() const {
    std::vector<std::chrono::milliseconds> all;
    for (const auto& link : links_) all.push_back(link->silent_for());
    return all;
}

std::optional<Error> TcpWorker::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

void TcpWorker::fetch(std::uint32_t block, bool alone, std::span<std::byte> into) {
    const auto pieces = placement_.pieces(block);
    const auto all = when_all(pieces.size(), [this, block](bool ok) { window_.fetched(block, ok); });
    for (const Piece& piece : pieces) {
        StepPath::Done done = all;
        const auto memory = part_of(into, block, piece);
        if (step_path_ == nullptr) {
            links_[piece.server]->post({FrameKind::pull, piece.block, {}, memory, std::move(done)});
        } else if (alone || !step_path_->pull(piece, memory, done)) {
            read(piece, memory, std::move(done));
        }
    }
}

void TcpWorker::read(const Piece& piece, std::span<std::byte> into, StepPath::Done done) {
    links_[piece.server]->post({FrameKind::read, piece.block, {}, into, std::move(done)});
}

void TcpWorker::handle(Request& request) {
    if (const auto error = unknown_block("the worker", request.block, shape_.blocks.size())) {
        fail(*error);
        return Streams::reply(request, false);
    }
    switch (request.kind) {
        case RequestKind::pull:
            return window_.pull(request.block, request.flag != 0,
                                [&request](bool ok, std::int64_t offset) { Streams::reply(request, ok, offset); });
        case RequestKind::release:
            return handle_release(request);
        case RequestKind::push:
            return handle_push(request);
        case RequestKind::initialise:
            return handle_initialise(request);
        case RequestKind::finish_initialise:
            return finish_initialise(request, 0);
        case RequestKind::begin:
        case RequestKind::vote:
            fail(Error(ErrorKind::order, "over a network a step begins and ends through the control plane"));
            return Streams::reply(request, false);
    }
}

void TcpWorker::handle_release(Request& request) {
    const bool held = window_.release(request.block);
    if (!held) fail(Error(ErrorKind::order, "block " + std::to_string(request.block) + " was released but not held"));
    Streams::reply(request, held);
}

std::optional<std::span<const std::byte>> TcpWorker::sent(const Request& request, std::uint64_t bytes) {
    if (request.argument <= arena_.bytes() && bytes <= arena_.bytes() - request.argument) {
        return std::span<const std::byte>(arena_.data() + request.argument, bytes);
    }
    fail(Error(ErrorKind::invalid,
               "the worker sent block '" + shape_.blocks[request.block].name + "' from behind the end of its arena"));
    return std::nullopt;
}

void TcpWorker::handle_push(Request& request) {
    const store::BlockShape& block = shape_.blocks[request.block];
    const auto gradient = sent(request, block.bytes());
    if (gradient && !block.trainable) fail(frozen_push("the worker", block.name));
    if (!gradient || !block.trainable) return Streams::reply(request, false);
    const auto pieces = placement_.pieces(request.block);
    const auto all = when_all(pieces.size(), [&request](bool ok) { Streams::reply(request, ok); });
    for (const Piece& piece : pieces) {
        const auto part = part_of(*gradient, request.block, piece);
        if (step_path_ != nullptr) {
            step_path_->push(piece, part.data(), all);
        } else {
            links_[piece.server]->post({FrameKind::push, piece.block, part, {}, all});
        }
    }
}

void TcpWorker::handle_initialise(Request& request) {
    const auto values = sent(request, shape_.blocks[request.block].elements * sizeof(float));
    if (!values) return Streams::reply(request, false);
    const auto pieces = placement_.pieces(request.block);
    const auto all = when_all(pieces.size(), [&request](bool ok) { Streams::reply(request, ok); });
    for (const Piece& piece : pieces) {
        if (!takes_values(piece.server)) {
            all(true);
            continue;
        }
        const auto part = values->subspan(piece.first * sizeof(float), piece.elements * sizeof(float));
        links_[piece.server]->post({FrameKind::initialise, piece.block, part, {}, all});
    }
}

void TcpWorker::finish_initialise(Request& request, std::uint32_t server) {
    while (server < links_.size() && !takes_values(server)) ++server;
    if (server == links_.size()) return Streams::reply(request, true);
    links_[server]->post({FrameKind::finish_initialise, 0, {}, {}, [this, &request, server](bool ok) {
                              if (!ok) return Streams::reply(request, false);
                              finish_initialise(request, server + 1);
                          }});
}

}  // namespace luwu::fabric
