#include "fabric/shm/shm_server.h"

#include <algorithm>
#include <utility>

#include "fabric/core/arena.h"
#include "fabric/core/refusals.h"
#include "step/agreement.h"

namespace luwu::fabric {

ShmServer::ShmServer(ServerSettings settings)
    : places_(settings.workers, static_cast<std::uint32_t>(settings.shape.blocks.size())),
      streams_(settings.workers, bytes_of_blocks(settings.shape)) {
    core_ = std::make_unique<ParameterServer>(std::move(settings),
                                              [this](const Error& error) { streams_.announce_failure(error); });
    streams_.control().gradient_bytes = core_->memory().plan().arena_bytes;
    for (std::uint32_t rank = 0; rank < core_->settings().workers; ++rank) {
        arena_files_.emplace_back("luwu-arena", arena_file_bytes(core_->settings().shape, core_->memory().plan()));
        arenas_.emplace_back(arena_files_.back().descriptor(), MapMode::shared);
    }
    streams_.start([this](std::uint32_t rank, Request& request) { handle(rank, request); },
                   [this] { abandoned_.release(*core_); });
}

ShmServer::~ShmServer() {
    streams_.stop();
    core_.reset();
}

std::array<int, 3> ShmServer::files_of(std::uint32_t rank) const {
    return {streams_.descriptor(), core_->memory().descriptor(), arena_files_.at(rank).descriptor()};
}

void ShmServer::lose(std::uint32_t rank) {
    check_worker(rank, core_->settings().workers);
    streams_.close(rank);
    for (const std::uint32_t block : places_.lose(rank)) core_->release(block);
    core_->lose(rank);
}

bool ShmServer::wait_for_place(std::uint32_t rank, std::chrono::milliseconds at_most) {
    return core_->wait_for_place(rank, at_most) && (core_->failure() || places_.wait_until_empty(rank, at_most));
}

void ShmServer::take_place(std::uint32_t rank) {
    check_worker(rank, core_->settings().workers);
    places_.take(rank);
    core_->joined(rank);
    streams_.open(rank);
}

// For requests that the pipeline answers later, in a thread of its own. The place hears of the answer after it is
// written: then nobody writes to the request any more.
pipeline::Reply ShmServer::reply_later(std::uint32_t rank, Request& request) {
    places_.asked(rank);
    return [this, rank, &request](pipeline::Outcome outcome) {
        Streams::reply(request, outcome.ok, outcome.value, outcome.squares);
        places_.answered(rank);
    };
}

void ShmServer::handle(std::uint32_t rank, Request& request) {
    const std::uint32_t blocks = core_->layout().block_count();
    if (const auto error = unknown_block(step::name_of(rank), request.block, blocks)) {
        fail(*error);
        return Streams::reply(request, false);
    }
    switch (request.kind) {
        case RequestKind::begin:
            return handle_begin(rank, request);
        case RequestKind::pull:
            return handle_pull(rank, request);
        case RequestKind::release:
            places_.released(rank, request.block);
            core_->release(request.block);
            return Streams::reply(request, true);
        case RequestKind::push:
            return handle_push(rank, request);
        case RequestKind::vote:
            return core_->vote(rank, request.flag != 0, reply_later(rank, request));
        case RequestKind::initialise:
        case RequestKind::finish_initialise:
            return handle_initialise(rank, request);
    }
}

void ShmServer::handle_begin(std::uint32_t rank, Request& request) {
    const WorkerArea& area = worker_area(streams_.control(), rank);
    const auto count = std::min(area.group_count, kMaximumGroups);
    pipeline::GradientSettings gradient;
    if (area.max_norm > 0) gradient.max_norm = area.max_norm;
    if (area.loss_scale > 0) gradient.loss_scale = {area.loss_scale, area.good_steps};
    core_->begin(rank, {area.groups.begin(), area.groups.begin() + count}, gradient);
    const pipeline::TraceRequest trace = core_->settings().tracing->request();
    Streams::reply(request, true, static_cast<std::int64_t>((trace.records << 1U) | (trace.last ? 1U : 0U)));
}

void ShmServer::handle_pull(std::uint32_t rank, Request& request) {
    const std::uint32_t block = request.block;
    core_->pull(rank, block, [this, rank, block, reply = reply_later(rank, request)](pipeline::Outcome outcome) {
        if (outcome.ok && !places_.pulled(rank, block)) {
            abandoned_.add(block);
            streams_.wake(Stream::parameters);
        }
        reply(outcome);
    });
}

bool ShmServer::within_arena(std::uint32_t rank, std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= arenas_[rank].bytes() && bytes <= arenas_[rank].bytes() - offset;
}

void ShmServer::handle_push(std::uint32_t rank, Request& request) {
    const store::BlockShape& block = core_->layout().shape().blocks[request.block];
    if (!within_arena(rank, request.argument, core_->memory().gradient_bytes(request.block)) || !block.trainable) {
        fail(frozen_push(step::name_of(rank), block.name, " or does not fit its arena there"));
        return Streams::reply(request, false);
    }
    core_->push(rank, request.block, arenas_[rank].data() + request.argument, reply_later(rank, request));
}

void ShmServer::handle_initialise(std::uint32_t rank, Request& request) {
    try {
        if (request.kind == RequestKind::finish_initialise) {
            core_->finish_initialise();
            arenas_[rank].discard();  // fp32 first values may take more than gradients, which the budget counts
        } else {
            const std::uint64_t bytes = core_->layout().shape().blocks[request.block].elements * sizeof(float);
            if (!within_arena(rank, request.argument, bytes)) {
                throw Error(ErrorKind::invalid, "the first values of a block do not fit the arena there");
            }
            core_->initialise(request.block, reinterpret_cast<const float*>(arenas_[rank].data() + request.argument));
        }
        Streams::reply(request, true);
    } catch (const Error& error) {
        fail(error);
        Streams::reply(request, false);
    }
}

}  // namespace luwu::fabric
