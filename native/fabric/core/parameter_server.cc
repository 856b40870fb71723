#include "fabric/core/parameter_server.h"

#include <utility>

#include "fabric/core/refusals.h"
#include "pipeline/replica.h"
#include "store/numa.h"
#include "store/snapshots.h"

namespace luwu::fabric {

namespace {

schedule::ResidencyPlan plan_of(const store::Layout& layout, const ServerSettings& settings) {
    const std::uint32_t streams = settings.one_stream ? 1 : settings.workers;
    const auto& dtype = settings.gradient_dtype;
    const bool trains = settings.mode != store::OpenMode::read_only;
    if (!trains || settings.one_of_several || !settings.commit_points.is_each_step()) {
        return schedule::plan_residency(layout, settings.memory_bytes, streams, settings.held, dtype);
    }
    const auto kept = schedule::kept_dtypes(layout, streams, dtype);
    return schedule::plan_with_tail(layout, settings.memory_bytes, streams, settings.held, dtype, kept);
}

schedule::NodePlan nodes_of(const store::Layout& layout, const ServerSettings& settings) {
    std::vector<std::optional<int>> disks;
    for (const std::string& folder : settings.folders) disks.push_back(store::numa_node_of_disk(folder));
    return schedule::plan_nodes(layout, store::numa_nodes(), disks, settings.optimizer_threads);
}

ServerSettings checked(ServerSettings settings) {
    check_trims(settings.trims, settings.workers, settings.one_stream);
    return settings;
}

// Goes to the step that the servers of a job agree on; throws Error(order) where the store cannot.
void go_to_step(store::ChunkStore& store, const ServerSettings& settings, std::uint64_t step) {
    const std::uint64_t newest = store.committed().step;
    if (newest == step) return;
    if (!store.before() || store.before()->step != step) {
        throw Error(ErrorKind::order, "the servers of this job stand too far apart: expected step " +
                                          std::to_string(step) + " in " + settings.folders[0] + ", found " +
                                          (store.before() ? std::to_string(store.before()->step) + " and " : "") +
                                          std::to_string(newest) + "; name the servers whose stores belong together");
    }
    store.go_back();
}

}  // namespace

ParameterServer::ParameterServer(ServerSettings settings, std::function<void(const Error&)> on_failure)
    : settings_(checked(std::move(settings))),
      layout_(settings_.shape, static_cast<std::uint32_t>(settings_.folders.size())),
      memory_(layout_, plan_of(layout_, settings_), settings_.gradient_dtype),
      store_(settings_.folders, layout_, settings_.uuid, settings_.mode),
      findings_(store_.findings()),
      initialised_(store_.initialised()) {
    if (settings_.mode != store::OpenMode::read_only) {
        store::remove_remains(settings_.folders);
        store_.make_room();
        if (settings_.at_step) go_to_step(store_, settings_, *settings_.at_step);
        if (settings_.snapshots.every > 0) {
            keeper_ = std::make_unique<pipeline::SnapshotKeeper>(store_, settings_.snapshots);
        }
    }
    // The last commit counts only once a standby that was in sync has it, too.
    if (settings_.replica && initialised_) {
        settings_.replica->start();
        settings_.replica->commit(store_);
    }
    pipeline::PipelineSettings for_pipeline;
    for_pipeline.nodes = nodes_of(layout_, settings_);
    for_pipeline.nodes.place_between({memory_.window(), memory_.plan().window_bytes});
    for_pipeline.plan = memory_.plan();
    for_pipeline.window = memory_.window();
    for_pipeline.workers = settings_.workers;
    for_pipeline.tracing = settings_.tracing;
    for_pipeline.one_stream = settings_.one_stream;
    for_pipeline.on_given_up = settings_.on_given_up;
    for_pipeline.gradient_dtype = settings_.gradient_dtype;
    for_pipeline.gradient_scale = settings_.gradient_scale;
    for_pipeline.optimizer_threads = settings_.optimizer_threads;
    for_pipeline.trims = settings_.trims;
    for_pipeline.prepares = settings_.one_of_several;
    for_pipeline.disk_full_wait = settings_.disk_full_wait;
    for_pipeline.commit_points = settings_.commit_points;
    for_pipeline.commit_points.for_snapshots = settings_.snapshots.every;
    for_pipeline.commit_after = settings_.commit_after;
    for_pipeline.replica = settings_.replica;
    if (keeper_) {
        for_pipeline.on_writing = [this](std::uint64_t step) { keeper_->writing(step); };
        for_pipeline.on_commit = [this] { keeper_->committed(); };
    }
    for_pipeline.on_failure = std::move(on_failure);
    pipeline_ = std::make_unique<pipeline::Pipeline>(store_, std::move(for_pipeline));
}

ParameterServer::~ParameterServer() { pipeline_.reset(); }

void ParameterServer::initialise(std::uint32_t block, const float* values) {
    check_no_values(initialised_);
    pipeline_->initialise(block, values);
}

void ParameterServer::finish_initialise() {
    check_no_values(initialised_);
    pipeline_->finish_initialise();
    initialised_ = true;
}

void ParameterServer::set_segments(std::uint32_t block, std::vector<pipeline::Segment> segments) {
    if (block >= layout_.block_count()) {
        throw Error(ErrorKind::invalid, "parameter group segments name block " + std::to_string(block) + " of " +
                                            std::to_string(layout_.block_count()));
    }
    const std::string expected = std::to_string(layout_.shape().blocks[block].elements);
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

pipeline::Pipeline::Begun ParameterServer::begin(std::uint32_t worker,
                                                 const std::vector<pipeline::GroupSettings>& groups,
                                                 const pipeline::GradientSettings& gradient) {
    check_worker(worker, settings_.workers);
    return pipeline_->begin(worker, groups, gradient);
}

void ParameterServer::pull(std::uint32_t stream, std::uint32_t block, pipeline::Reply reply) {
    pipeline_->pull(stream, block, std::move(reply));
}

void ParameterServer::read(std::uint32_t block, pipeline::Reply reply) { pipeline_->read(block, std::move(reply)); }

void ParameterServer::push(std::uint32_t stream, std::uint32_t block, const std::byte* gradient,
                           pipeline::Reply reply) {
    pipeline_->push(stream, block, gradient, std::move(reply));
}

void ParameterServer::vote(std::uint32_t worker, bool roll_back, pipeline::Reply reply) {
    pipeline_->vote(worker, roll_back, std::move(reply));
}

void ParameterServer::vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
    check_worker(worker, settings_.workers);
    pipeline_->vote(worker, roll_back, pushes);
}

std::optional<pipeline::Outcome> ParameterServer::wait_for_end(std::uint32_t worker,
                                                               std::chrono::milliseconds at_most) {
    check_worker(worker, settings_.workers);
    return pipeline_->wait_for_end(worker, at_most);
}

pipeline::LastWord ParameterServer::last_word(std::uint32_t worker) {
    check_worker(worker, settings_.workers);
    return pipeline_->last_word(worker);
}

std::uint64_t ParameterServer::take_snapshot() {
    if (const auto error = pipeline_->wait_until_written()) throw *error;
    store::ChunkStore seen(settings_.folders, layout_, settings_.uuid, store::OpenMode::read_only);
    return store::take_snapshot(seen, true);
}

ServerStats ParameterServer::stats() const {
    return {pipeline_->stats(), keeper_ ? keeper_->stats() : pipeline::SnapshotStats{}};
}

bool ParameterServer::make_durable(std::chrono::milliseconds at_most) { return pipeline_->make_durable(at_most); }

void ParameterServer::close() {
    fail(pipeline::server_closed());
    pipeline_->stop_waiting_for_room();
    if (const auto error = pipeline_->wait_until_written()) throw *error;
}

void ParameterServer::joined(std::uint32_t worker) {
    check_worker(worker, settings_.workers);
    pipeline_->joined(worker);
}

void ParameterServer::leave(std::uint32_t worker) {
    check_worker(worker, settings_.workers);
    pipeline_->leave(worker);
}

std::optional<std::uint64_t> ParameterServer::lose(std::uint32_t worker) {
    check_worker(worker, settings_.workers);
    return pipeline_->lose(worker);
}

bool ParameterServer::wait_for_place(std::uint32_t worker, std::chrono::milliseconds at_most) {
    check_worker(worker, settings_.workers);
    return pipeline_->wait_for_place(worker, at_most);
}

}  // namespace luwu::fabric
