#include "fabric/parameter_server.h"

#include <future>
#include <utility>

#include "store/snapshots.h"

namespace luwu::fabric {

ParameterServer::ParameterServer(ServerConfig config, std::function<void(const Error&)> on_failure)
    : config_(std::move(config)),
      layout_(config_.shape, static_cast<std::uint32_t>(config_.folders.size())),
      plan_(schedule::plan_residency(layout_, config_.memory_bytes, config_.workers, config_.held,
                                     config_.gradient_dtype)),
      store_(config_.folders, layout_, config_.uuid, config_.mode),
      findings_(store_.findings()),
      initialised_(store_.initialised()),
      window_file_("luwu-window", plan_.window_bytes),
      window_(window_file_.descriptor(), MapMode::shared),
      votes_(config_.workers),
      pushes_(config_.workers, 0) {
    if (config_.mode != store::OpenMode::read_only) {
        store::remove_remains(config_.folders);
        store_.make_room();
        if (config_.at_step) go_to_step(*config_.at_step);
        if (config_.snapshots.every > 0) {
            keeper_ = std::make_unique<pipeline::SnapshotKeeper>(store_, config_.snapshots);
        }
    }
    pipeline::PipelineSettings settings;
    settings.plan = plan_;
    settings.window = window_.data();
    settings.workers = config_.workers;
    settings.gradient_dtype = config_.gradient_dtype;
    settings.gradient_scale = config_.gradient_scale;
    settings.optimizer_threads = config_.optimizer_threads;
    settings.prepares = config_.one_of_several;
    settings.disk_full_wait = config_.disk_full_wait;
    if (keeper_) {
        settings.on_writing = [this] { keeper_->writing(); };
        settings.on_commit = [this] { keeper_->committed(); };
    }
    settings.on_failure = [this, on_failure = std::move(on_failure)](const Error& error) {
        on_failure(error);
        {
            const std::lock_guard lock(votes_mutex_);
            failed_ = true;
        }
        voted_.notify_all();
    };
    pipeline_ = std::make_unique<pipeline::Pipeline>(store_, std::move(settings));
}

void ParameterServer::go_to_step(std::uint64_t step) {
    const std::uint64_t newest = store_.committed().step;
    if (newest == step) return;
    if (!store_.before() || store_.before()->step != step) {
        throw Error(ErrorKind::order, "the servers of this job stand too far apart: expected step " +
                                          std::to_string(step) + " in " + config_.folders[0] + ", found " +
                                          (store_.before() ? std::to_string(store_.before()->step) + " and " : "") +
                                          std::to_string(newest) + "; name the servers whose stores belong together");
    }
    store_.go_back();
}

ParameterServer::~ParameterServer() { pipeline_.reset(); }

std::uint64_t ParameterServer::parameter_bytes(std::uint32_t block) const {
    return layout_.shape().blocks[block].bytes();
}

std::uint64_t ParameterServer::gradient_bytes(std::uint32_t block) const {
    const kernels::Dtype dtype = config_.gradient_dtype.value_or(layout_.dtype(block));
    return layout_.shape().blocks[block].elements * kernels::size_of(dtype);
}

void ParameterServer::initialise(std::uint32_t block, const float* values) {
    if (initialised_) throw Error(ErrorKind::order, "the store is initialised already");
    pipeline_->initialise(block, values);
}

void ParameterServer::finish_initialise() {
    if (initialised_) throw Error(ErrorKind::order, "the store is initialised already");
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

void ParameterServer::check_worker(std::uint32_t worker) const {
    if (worker < config_.workers) return;
    throw Error(ErrorKind::invalid,
                "worker " + std::to_string(worker) + " is not one of this server's " + std::to_string(config_.workers));
}

void ParameterServer::begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                            const pipeline::GradientSettings& gradient) {
    check_worker(worker);
    pipeline_->begin(worker, groups, gradient);
}

void ParameterServer::pull(std::uint32_t worker, std::uint32_t block, pipeline::Reply reply) {
    pipeline_->pull(worker, block, std::move(reply));
}

void ParameterServer::read(std::uint32_t block, pipeline::Reply reply) { pipeline_->read(block, std::move(reply)); }

void ParameterServer::push(std::uint32_t worker, std::uint32_t block, const std::byte* gradient,
                           pipeline::Reply reply) {
    pipeline_->push(worker, block, gradient, std::move(reply));
    {
        const std::lock_guard lock(votes_mutex_);
        ++pushes_[worker];
    }
    forward_vote(worker);
}

void ParameterServer::commit(std::uint32_t worker, bool roll_back, pipeline::Reply reply) {
    pipeline_->commit(worker, roll_back, std::move(reply));
}

void ParameterServer::commit(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
    check_worker(worker);
    {
        const std::lock_guard lock(votes_mutex_);
        Vote& vote = votes_[worker];
        if (vote.waiting) {
            throw Error(ErrorKind::order, "worker " + std::to_string(worker) + " voted twice on one step");
        }
        vote = {};
        vote.given = vote.waiting = true;
        vote.roll_back = roll_back;
        vote.pushes = pushes;
    }
    forward_vote(worker);
}

void ParameterServer::forward_vote(std::uint32_t worker) {
    bool roll_back = false;
    {
        const std::lock_guard lock(votes_mutex_);
        Vote& vote = votes_[worker];
        if (!vote.given || pushes_[worker] < vote.pushes) return;
        vote.given = false;
        roll_back = vote.roll_back;
    }
    pipeline_->commit(worker, roll_back, [this, worker](pipeline::Outcome outcome) {
        {
            const std::lock_guard lock(votes_mutex_);
            votes_[worker].waiting = false;
            votes_[worker].answered = true;
            votes_[worker].outcome = outcome;
        }
        voted_.notify_all();
    });
}

std::optional<pipeline::Outcome> ParameterServer::wait_commit(std::uint32_t worker, std::chrono::milliseconds at_most) {
    check_worker(worker);
    {
        std::unique_lock lock(votes_mutex_);
        const Vote& vote = votes_[worker];
        if (!vote.waiting && !vote.answered) {
            throw Error(ErrorKind::order,
                        "worker " + std::to_string(worker) + " waits for the end of a step that it has not voted on");
        }
        voted_.wait_for(lock, at_most, [this, &vote] { return vote.answered || failed_; });
        if (vote.answered && vote.outcome.ok) return vote.outcome;
    }
    if (const auto error = failure()) throw *error;  // also where the vote was never forwarded
    return std::nullopt;
}

std::optional<pipeline::Outcome> ParameterServer::decide(bool commits, std::chrono::milliseconds at_most,
                                                         double squares) {
    const auto answer = std::make_shared<std::promise<pipeline::Outcome>>();
    auto answered = answer->get_future();
    pipeline_->decide(commits, [answer](pipeline::Outcome outcome) { answer->set_value(outcome); }, squares);
    if (answered.wait_for(at_most) != std::future_status::ready) return std::nullopt;
    const pipeline::Outcome outcome = answered.get();
    if (outcome.ok) return outcome;
    if (const auto error = failure()) throw *error;
    return std::nullopt;
}

std::uint64_t ParameterServer::take_snapshot() {
    if (const auto error = pipeline_->wait_until_written()) throw *error;
    store::ChunkStore seen(config_.folders, layout_, config_.uuid, store::OpenMode::read_only);
    return store::take_snapshot(seen, true);
}

pipeline::SnapshotStats ParameterServer::snapshot_stats() const {
    return keeper_ ? keeper_->stats() : pipeline::SnapshotStats{};
}

void ParameterServer::close() {
    fail(Error(ErrorKind::server, "the server was closed"));
    if (const auto error = pipeline_->wait_until_written()) throw *error;
}

void ParameterServer::joined(std::uint32_t worker) {
    check_worker(worker);
    const std::lock_guard lock(votes_mutex_);
    pushes_[worker] = 0;
    if (!votes_[worker].waiting) votes_[worker] = {};  // another worker's answer
}

void ParameterServer::leave(std::uint32_t worker) {
    check_worker(worker);
    pipeline_->leave(worker);
}

}  // namespace luwu::fabric
