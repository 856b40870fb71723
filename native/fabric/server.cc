#include "fabric/server.h"

#include <algorithm>
#include <utility>

namespace luwu::fabric {

namespace {

// The first values travel as fp32 through the arena, whatever the parameters' dtype. Pages that nobody writes cost
// nothing.
std::uint64_t arena_file_bytes(const store::Layout& layout, const pipeline::ResidencyPlan& plan) {
    std::uint64_t largest = 0;
    for (const store::BlockShape& block : layout.shape().blocks) largest = std::max(largest, block.elements);
    return std::max(plan.arena_bytes, store::round_up(largest * sizeof(float), store::kPage)) + kArenaSlackBytes;
}

std::vector<std::uint64_t> window_bytes_of_blocks(const store::Layout& layout) {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) bytes.push_back(layout.window_bytes(block));
    return bytes;
}

pipeline::Reply reply_to(Request& request) {
    return [&request](pipeline::Outcome outcome) { Streams::reply(request, outcome.ok, outcome.value); };
}

}  // namespace

Server::Server(ServerConfig config)
    : config_(std::move(config)),
      layout_(config_.shape, static_cast<std::uint32_t>(config_.folders.size())),
      plan_(pipeline::plan_residency(layout_, config_.memory_bytes, config_.workers, config_.held)),
      store_(config_.folders, layout_, config_.uuid, config_.mode),
      initialised_(store_.initialised()),
      window_file_("luwu-window", plan_.window_bytes),
      window_(window_file_.descriptor(), MapMode::shared),
      streams_(config_.workers, window_bytes_of_blocks(layout_)) {
    streams_.control().gradient_bytes = plan_.arena_bytes;
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
        arena_files_.emplace_back("luwu-arena", arena_file_bytes(layout_, plan_));
        arenas_.emplace_back(arena_files_.back().descriptor(), MapMode::shared);
    }
    pipeline::PipelineSettings settings;
    settings.plan = plan_;
    settings.window = window_.data();
    settings.workers = config_.workers;
    settings.optimizer_threads = config_.optimizer_threads;
    settings.on_failure = [this](const Error& error) { streams_.announce_failure(error); };
    pipeline_ = std::make_unique<pipeline::Pipeline>(store_, std::move(settings));
    streams_.start([this](std::uint32_t rank, Request& request) { handle(rank, request); });
}

Server::~Server() {
    streams_.stop();
    pipeline_.reset();  // its last failure notice still goes to the streams' memory
}

std::array<int, 3> Server::files_of(std::uint32_t rank) const {
    return {streams_.descriptor(), window_file_.descriptor(), arena_files_.at(rank).descriptor()};
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
            const WorkerArea& area = worker_area(streams_.control(), rank);
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
            arenas_[rank].discard();  // fp32 first values may take more than gradients, which the budget counts
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

}  // namespace luwu::fabric
