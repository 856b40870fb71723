#include "fabric/server.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace luwu::fabric {

namespace {

constexpr std::chrono::milliseconds kIdleWait{1000};  // only bounds a lost wake-up; requests ring the doorbell

// The first values travel as fp32 through the arena, whatever the parameters' dtype. Pages that nobody writes cost nothing.
std::uint64_t arena_file_bytes(const store::Layout& layout, const pipeline::ResidencyPlan& plan) {
    std::uint64_t largest = 0;
    for (const store::BlockShape& block : layout.shape().blocks) largest = std::max(largest, block.elements);
    return std::max(plan.arena_bytes, store::round_up(largest * sizeof(float), store::kPage));
}

}  // namespace

Server::Server(ServerConfig config)
    : config_(std::move(config)),
      layout_(config_.shape, static_cast<std::uint32_t>(config_.folders.size())),
      plan_(pipeline::plan_residency(layout_, config_.memory_bytes, config_.workers, config_.held)),
      store_(config_.folders, layout_, config_.uuid, config_.mode),
      initialised_(store_.initialised()),
      control_file_("luwu-control", control_bytes(config_.workers, layout_.block_count())),
      window_file_("luwu-window", plan_.window_bytes),
      control_memory_(control_file_.descriptor(), MapMode::shared),
      window_(window_file_.descriptor(), MapMode::shared),
      control_(new (control_memory_.data()) ControlArea) {
    control_->workers = config_.workers;
    control_->blocks = layout_.block_count();
    for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
        block_bytes_table(*control_)[block] = layout_.window_bytes(block);
    }
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
        new (&worker_area(*control_, rank)) WorkerArea;
        arena_files_.emplace_back("luwu-arena", arena_file_bytes(layout_, plan_));
        arenas_.emplace_back(arena_files_.back().descriptor(), MapMode::shared);
    }
    pipeline::PipelineSettings settings;
    settings.plan = plan_;
    settings.window = window_.data();
    settings.workers = config_.workers;
    settings.optimizer_threads = config_.optimizer_threads;
    settings.on_failure = [this](const Error& error) { announce_failure(error); };
    pipeline_ = std::make_unique<pipeline::Pipeline>(store_, std::move(settings));
    for (const Stream stream : {Stream::parameters, Stream::gradients}) {
        streams_.emplace_back([this, stream] { serve(stream); });
    }
}

Server::~Server() {
    stopping_ = true;
    for (auto& doorbell : control_->doorbells) {
        doorbell.fetch_add(1, std::memory_order_release);
        futex_wake(doorbell);
    }
    for (std::thread& thread : streams_) thread.join();
    pipeline_.reset();
}

std::array<int, 3> Server::files_of(std::uint32_t rank) const {
    return {control_file_.descriptor(), window_file_.descriptor(), arena_files_.at(rank).descriptor()};
}

void Server::set_segments(std::uint32_t block, std::vector<pipeline::Segment> segments) {
    const std::string expected = std::to_string(layout_.shape().blocks.at(block).elements);
    std::uint64_t end = 0;
    for (const pipeline::Segment& segment : segments) {
        if (segment.end <= end) throw Error(ErrorKind::invalid, "parameter group segments must ascend");
        end = segment.end;
    }
    if (end != layout_.shape().blocks[block].elements) {
        throw Error(ErrorKind::invalid, "parameter group segments of block " + std::to_string(block) + " end at " +
                                            std::to_string(end) + "; expected " + expected);
    }
    pipeline_->set_segments(block, std::move(segments));
}

void Server::serve(Stream stream) {
    pthread_setname_np(pthread_self(), stream == Stream::parameters ? "luwu-2-push" : "luwu-3-pull");
    const auto index = static_cast<std::size_t>(stream);
    std::vector<std::uint64_t> next(config_.workers, 1);
    while (!stopping_) {
        const std::uint32_t seen = control_->doorbells[index].load(std::memory_order_acquire);
        bool idle = true;
        for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
            Ring& ring = worker_area(*control_, rank).rings[index];
            Request* request = &ring.requests[next[rank] % kRingRequests];
            while (request->state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(RequestState::posted) &&
                   request->sequence == next[rank]) {
                handle(rank, *request);
                idle = false;
                request = &ring.requests[++next[rank] % kRingRequests];
            }
        }
        if (idle) futex_wait(control_->doorbells[index], seen, kIdleWait);
    }
}

pipeline::Reply Server::reply_to(Request& request) {
    return [&request](pipeline::Outcome outcome) {
        request.result = outcome.value;
        request.done_ns = monotonic_ns();
        request.state.store(static_cast<std::uint32_t>(outcome.ok ? RequestState::done : RequestState::failed),
                            std::memory_order_release);
        futex_wake(request.state);
    };
}

void Server::handle(std::uint32_t rank, Request& request) {
    if (request.block >= layout_.block_count()) {
        fail(Error(ErrorKind::invalid, "worker " + std::to_string(rank) + " named block " +
                                           std::to_string(request.block) + " of " +
                                           std::to_string(layout_.block_count())));
        return reply_to(request)({false, 0});
    }
    const pipeline::Reply reply = reply_to(request);
    switch (request.operation) {
        case Operation::begin: {
            const WorkerArea& area = worker_area(*control_, rank);
            const auto count = std::min(area.group_count, kMaximumGroups);
            pipeline_->begin(rank, {area.groups.begin(), area.groups.begin() + count});
            return reply({});
        }
        case Operation::pull:
            return pipeline_->pull(rank, request.block, reply);
        case Operation::release:
            pipeline_->release(request.block);
            return reply({});
        case Operation::push:
            return handle_push(rank, request);
        case Operation::commit:
            return pipeline_->commit(rank, request.flag != 0, reply);
        case Operation::initialise:
        case Operation::finish_initialise:
            return handle_initialise(rank, request);
    }
}

void Server::handle_push(std::uint32_t rank, Request& request) {
    const Mapping& arena = arenas_[rank];
    const std::uint64_t bytes = layout_.shape().blocks[request.block].elements * layout_.parameter_size();
    if (request.argument > arena.bytes() || bytes > arena.bytes() - request.argument ||
        !layout_.shape().blocks[request.block].trainable) {
        fail(Error(ErrorKind::invalid, "worker " + std::to_string(rank) + " pushed block '" +
                                           layout_.shape().blocks[request.block].name +
                                           "', which is frozen or does not fit its arena there"));
        return reply_to(request)({false, 0});
    }
    pipeline_->push(rank, request.block, arena.data() + request.argument, reply_to(request));
}

void Server::handle_initialise(std::uint32_t rank, Request& request) {
    try {
        if (initialised_) throw Error(ErrorKind::order, "the store is initialised already");
        if (request.operation == Operation::finish_initialise) {
            pipeline_->finish_initialise();
            initialised_ = true;
        } else {
            const Mapping& arena = arenas_[rank];
            const std::uint64_t bytes = layout_.shape().blocks[request.block].elements * sizeof(float);
            if (request.argument > arena.bytes() || bytes > arena.bytes() - request.argument) {
                throw Error(ErrorKind::invalid, "the first values of a block do not fit the arena there");
            }
            pipeline_->initialise(request.block, reinterpret_cast<const float*>(arena.data() + request.argument));
        }
        reply_to(request)({});
    } catch (const Error& error) {
        fail(error);
        reply_to(request)({false, 0});
    }
}

void Server::announce_failure(const Error& error) {
    const std::string text = error.what();
    const std::size_t length = std::min(text.size(), control_->failure_text.size() - 1);
    std::memcpy(control_->failure_text.data(), text.data(), length);
    control_->failure_text[length] = '\0';
    control_->failed.store(1 + static_cast<std::uint32_t>(error.kind()), std::memory_order_release);
}

}  // namespace luwu::fabric
