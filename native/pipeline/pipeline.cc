// Construction, and steps 1 to 3: parameters on their way out, gradients on their way in.
#include "pipeline/pipeline.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/crc32c.h"
#include "schedule/read_ahead.h"
#include "store/writer.h"

namespace luwu::pipeline {

namespace {
// Where there is one thread for each processor that this process may use, keeps every thread on one of them. An update
// then takes equal parts of all processors at the same time. A worker on the same machine, whose threads wait for
// each other, loses half as much as when two updates queue up on one processor: 3 % of a step on two.
void spread_over_processors(std::vector<std::thread>& threads) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (CPU_COUNT(&allowed) != static_cast<int>(threads.size())) return;
    std::size_t processor = 0;
    for (std::thread& thread : threads) {
        while (!CPU_ISSET(processor, &allowed)) ++processor;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor++, &one);
        pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);  // a refusal changes speed only
    }
}

}  // namespace

Pipeline::Pipeline(store::ChunkStore& store, PipelineSettings settings)
    : store_(store),
      layout_(store.layout()),
      settings_(std::move(settings)),
      pass_(layout_.block_count(), settings_.workers),
      window_(settings_.plan, pass_),
      states_(layout_, settings_.plan),
      blocks_(layout_.block_count()),
      begun_(settings_.workers, false),
      chunk_wanted_(layout_.chunks().size(), false),
      chunk_needs_(layout_.chunks().size(), 0),
      room_(settings_.disk_full_wait) {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
        blocks_[block].count = store_.committed().counts[block];
        blocks_[block].gradients.assign(settings_.workers, nullptr);
        blocks_[block].segments = {{layout_.shape().blocks[block].elements, 0}};
    }
    initialised_ = store_.initialised();
    stats_.step = store_.committed().step;
    stats_.attempts = store_.committed().attempts;
    stats_.rolled_back = store_.committed().rolled_back;
    stats_.loss_scale = store_.committed().loss_scale;
    const auto stage = [this](const char* name, void (Pipeline::*done)(IoTask&)) {
        return std::make_unique<IoStage>(name, settings_.make_engine(settings_.io_depth),
                                         [this, done](IoTask& task) { (this->*done)(task); });
    };
    parameter_reader_ = stage("luwu-1-read", &Pipeline::parameters_read);
    state_reader_ = stage("luwu-4-read", &Pipeline::states_read);
    writer_ = stage("luwu-6-write", &Pipeline::record_written);
    for (std::uint32_t i = 0; i < settings_.optimizer_threads; ++i) {
        optimizers_.emplace_back([this] { optimizer_loop(); });
    }
    spread_over_processors(optimizers_);
}

Pipeline::~Pipeline() {
    fail(Error(ErrorKind::server, "the server was closed"));
    wait_until_written();
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    update_ready_.notify_all();
    for (std::thread& thread : optimizers_) thread.join();
    parameter_reader_.reset();
    state_reader_.reset();
    writer_.reset();
}

std::uint64_t Pipeline::block_bytes(std::uint32_t block) const { return layout_.shape().blocks[block].bytes(); }

std::byte* Pipeline::parameters_of(const store::ChunkPlace& place) const {
    return settings_.window + window_.offset(place.block) + place.first_element * layout_.parameter_size(place.block);
}

kernels::Dtype Pipeline::gradient_dtype(std::uint32_t block) const {
    return settings_.gradient_dtype.value_or(layout_.dtype(block));
}

float Pipeline::average() const {
    const float mean = settings_.gradient_scale.value_or(1.0F / static_cast<float>(settings_.workers));
    if (!gradient_.loss_scale) return mean;
    return static_cast<float>(static_cast<double>(mean) / gradient_.loss_scale->scale);
}

// Of a step that will be rolled back, new versions may never have been written: they must not be read. Nor may old ones
// of a step that was answered.
bool Pipeline::reading_allowed(std::uint32_t block) const {
    return !(step_is_void() && blocks_[block].updated) && !blocks_[block].stale;
}

void Pipeline::initialise(std::uint32_t block, const float* values) {
    for (const store::ChunkPlace& place : layout_.chunks_of(block)) {
        store::write_chunk(store_, place, 0, values + place.first_element);
        const std::lock_guard lock(mutex_);
        stats_.bytes_written += place.record_bytes();
    }
}

void Pipeline::finish_initialise() {
    store::CommitRecord record;
    record.counts.assign(blocks_.size(), 0);
    store_.commit(std::move(record));
    const std::lock_guard lock(mutex_);
    initialised_ = true;
}

bool Pipeline::has_values() {
    if (!initialised_) fail_locked(store_.no_values());
    return initialised_;
}

void Pipeline::set_segments(std::uint32_t block, std::vector<Segment> segments) {
    const std::lock_guard lock(mutex_);
    blocks_[block].segments = std::move(segments);
}

void Pipeline::begin(std::uint32_t worker, const std::vector<GroupSettings>& groups, const GradientSettings& gradient) {
    const std::lock_guard lock(mutex_);
    if (left_) return fail_locked(left_too_early());
    if (prepared_) {
        return fail_locked(Error(ErrorKind::order, "worker " + std::to_string(worker) +
                                                       " began a step before the one before it was decided on"));
    }
    pass_.begin_step(worker);
    const bool first = !in_step();
    begun_[worker] = true;
    if (first) {
        choose_clipping(gradient.max_norm.has_value());
        groups_ = groups;
        gradient_ = gradient;
    } else if (groups_ != groups || gradient_ != gradient) {
        fail_locked(Error(ErrorKind::order, "worker " + std::to_string(worker) + " began step " +
                                                std::to_string(stats_.step + 1) +
                                                " with other hyper-parameters than the workers before it; give every "
                                                "worker the same optimizer settings and schedule"));
    }
}

void Pipeline::leave(std::uint32_t worker) {
    const std::lock_guard lock(mutex_);
    left_ = worker;
    begun_[worker] = false;
    if (in_step() || prepared_ || !commit_replies_.empty()) fail_locked(left_too_early());
}

Error Pipeline::left_too_early() const {
    return Error(ErrorKind::worker_lost, "worker " + std::to_string(*left_) + " left after step " +
                                             std::to_string(stats_.step) +
                                             " and others went on; give every worker the same number of batches");
}

void Pipeline::pull(std::uint32_t worker, std::uint32_t block, Reply reply) {
    const std::lock_guard lock(mutex_);
    if (failure_ || !has_values()) return reply({false, 0});
    pass_.pulled(worker, block);
    if (blocks_[block].gradients[worker] != nullptr) {
        fail_locked(Error(ErrorKind::order, "worker " + std::to_string(worker) + " pulled block '" +
                                                layout_.shape().blocks[block].name +
                                                "' again after pushing its gradient in the same step"));
        return reply({false, 0});
    }
    hand_out(block, std::move(reply));
    prefetch_parameters(worker);
}

void Pipeline::read(std::uint32_t block, Reply reply) {
    const std::lock_guard lock(mutex_);
    if (failure_ || !has_values()) return reply({false, 0});
    hand_out(block, std::move(reply));
}

void Pipeline::hand_out(std::uint32_t block, Reply reply) {
    ++stats_.pulls;
    if (blocks_[block].stale) {
        ++stats_.pulls_waited;
        blocks_[block].waiting_pulls.push_back(std::move(reply));
        return hurry(block);
    }
    if (window_.state(block) == schedule::WindowCache::State::resident) return deliver(block, reply);
    ++stats_.pulls_waited;
    blocks_[block].waiting_pulls.push_back(std::move(reply));
    want_parameters(block);
}

void Pipeline::release(std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    window_.unhold(block);
    // A worker may be done with a block before its gradient is here, and the update needs the parameters, too.
    if (update_comes(block) && !pass_.used_again_in_step(block)) window_.set_awaits_update(block, true);
    retry_waiting_blocks();
    for (std::uint32_t worker = 0; worker < settings_.workers; ++worker) prefetch_parameters(worker);
    try_finish_step();
}

bool Pipeline::in_step() const {
    return std::any_of(begun_.begin(), begun_.end(), [](bool begun) { return begun; });
}

bool Pipeline::update_comes(std::uint32_t block) const {
    const bool at_once = !kept_ || speculates_;  // else once the step is decided
    return in_step() && at_once && layout_.shape().blocks[block].trainable && !blocks_[block].updating &&
           !blocks_[block].updated && !step_is_void();
}

void Pipeline::want_parameters(std::uint32_t block) {
    if (window_.state(block) != schedule::WindowCache::State::absent) return;
    if (std::find(waiting_blocks_.begin(), waiting_blocks_.end(), block) != waiting_blocks_.end()) return;
    waiting_blocks_.push_back(block);
    retry_waiting_blocks();
}

void Pipeline::retry_waiting_blocks() {
    while (!failure_ && !waiting_blocks_.empty()) {
        const std::uint32_t block = waiting_blocks_.front();
        if (window_.state(block) == schedule::WindowCache::State::absent && !blocks_[block].stale) {
            // What is needed at once keeps its place where an update under way is going to free another.
            const auto sooner_than = updates_under_way_ > 0 ? std::optional<std::uint64_t>(0) : std::nullopt;
            if (!reading_allowed(block) || !window_.place(block, sooner_than)) break;
            start_parameter_read(block);
        } else if (window_.state(block) == schedule::WindowCache::State::resident && !blocks_[block].stale) {
            for (const Reply& reply : std::exchange(blocks_[block].waiting_pulls, {})) deliver(block, reply);
        }  // else whoever reads or updates it hands it out
        waiting_blocks_.pop_front();
    }
    start_due_updates();
}

void Pipeline::prefetch_parameters(std::uint32_t worker) {
    const auto allowed = [this](std::uint32_t block) { return reading_allowed(block); };
    while (waiting_blocks_.empty() && !failure_) {
        const auto block = schedule::place_ahead(pass_, window_, worker, allowed);
        if (!block) return;
        start_parameter_read(*block);
    }
}

void Pipeline::start_parameter_read(std::uint32_t block) {
    Block& entry = blocks_[block];
    const auto places = layout_.chunks_of(block);
    entry.chunks_reading = static_cast<std::uint32_t>(places.size());
    for (std::uint32_t i = 0; i < places.size(); ++i) {
        auto task = std::make_unique<IoTask>();
        task->chunk = layout_.first_chunk(block) + i;
        task->count = entry.count;
        task->bytes = places[i].parameter_bytes + store::kPage;
        task->page = store::AlignedBuffer(store::kPage);
        task->request = store_.read_parameters(places[i], entry.count, parameters_of(places[i]), task->page.data());
        ++reads_in_flight_;
        parameter_reader_->submit(std::move(task));
    }
}

void Pipeline::parameters_read(IoTask& task) {
    const store::ChunkPlace& place = layout_.chunks()[task.chunk];
    std::optional<Error> error;
    try {
        if (task.request.error != 0) throw store_.failed(task.request, place, task.count);
        const store::ChunkHeader header = store::load_chunk_header(task.page.data());
        store_.check_header(header, place, task.count);
        const std::byte* data = parameters_of(place);  // fixed while the block is being read
        const std::uint32_t crc = kernels::crc32c(0, data, place.elements * layout_.parameter_size(place.block));
        if (crc != header.parameter_crc) throw store_.damaged(place, task.count, 0);
    } catch (const Error& caught) {
        error = caught;
    }
    const std::lock_guard lock(mutex_);
    --reads_in_flight_;
    stats_.bytes_read += task.bytes;
    if (error) return break_locked(*error);
    if (broken_) return;
    if (--blocks_[place.block].chunks_reading == 0) parameters_resident(place.block);
    try_finish_step();
}

void Pipeline::parameters_resident(std::uint32_t block) {
    window_.read_done(block);
    Block& entry = blocks_[block];
    if (!entry.stale) {
        for (const Reply& reply : std::exchange(entry.waiting_pulls, {})) deliver(block, reply);
    }
    if (std::exchange(entry.update_needs_parameters, false) && !given_up(entry)) start_chunks(block);
    retry_waiting_blocks();
}

void Pipeline::deliver(std::uint32_t block, const Reply& reply) {
    window_.hold(block);
    stats_.bytes_pulled += block_bytes(block);
    reply({true, static_cast<std::int64_t>(window_.offset(block))});
}

void Pipeline::push(std::uint32_t worker, std::uint32_t block, const std::byte* gradient, Reply reply) {
    const std::lock_guard lock(mutex_);
    if (failure_ || !has_values()) return reply({false, 0});
    Block& entry = blocks_[block];
    if (entry.gradients[worker] != nullptr || !begun_[worker]) {
        fail_locked(Error(ErrorKind::order, "worker " + std::to_string(worker) + " pushed block '" +
                                                layout_.shape().blocks[block].name +
                                                (begun_[worker] ? "' twice in one step" : "' before it began a step")));
        return reply({false, 0});
    }
    entry.gradients[worker] = gradient;
    stats_.bytes_pushed += layout_.shape().blocks[block].elements * kernels::size_of(gradient_dtype(block));
    if (roll_back_) return reply({});  // nobody needs it: the worker that gave the step up may never push its own
    entry.push_replies.push_back(std::move(reply));
    if (++entry.arrived == settings_.workers) begin_update(block);
}

std::optional<Error> Pipeline::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

PipelineStats Pipeline::stats() const {
    const std::lock_guard lock(mutex_);
    PipelineStats stats = stats_;
    stats.unwritten = settling_ ? 1 : 0;
    stats.waits_for_room = room_.waits();
    return stats;
}

void Pipeline::fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    fail_locked(error);
}

void Pipeline::fail_locked(const Error& error) {
    if (failure_) return;
    failure_ = error;
    room_.stop();
    settings_.on_failure(error);
    std::erase_if(update_queue_, [this](const Work& work) {
        if (!given_up(blocks_[layout_.chunks()[work.chunk].block])) return false;
        if (kept_) kept_->give_buffer_back(work.chunk);
        return true;
    });
    for (Block& block : blocks_) {
        for (const Reply& reply : std::exchange(block.waiting_pulls, {})) reply({false, 0});
        answer_failed_pushes(block);
    }
    for (const Reply& reply : std::exchange(commit_replies_, {})) reply({false, 0});
    start_due_updates();  // nobody pulls any more
}

void Pipeline::break_locked(const Error& error) {
    broken_ = error;
    update_queue_.clear();
    fail_locked(error);
    settled_.notify_all();
}

// Gradients that an optimizer thread reads are the workers' again when it has put the last chunk down.
void Pipeline::answer_failed_pushes(Block& block) {
    if (block.chunks_in_hand > 0) return;
    for (const Reply& reply : std::exchange(block.push_replies, {})) reply({false, 0});
}

}  // namespace luwu::pipeline
