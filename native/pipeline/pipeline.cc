#include "pipeline/pipeline.h"

#include <utility>
#include <variant>

#include "pipeline/executor.h"
#include "pipeline/replica.h"
#include "step/agreement.h"
#include "store/writer.h"

namespace luwu::pipeline {

namespace {

// Null where the first action is another, or there is none.
template <class Kind>
const Kind* first(const step::Actions& actions) {
    return actions.empty() ? nullptr : std::get_if<Kind>(&actions.front());
}

}  // namespace

Pipeline::Pipeline(store::ChunkStore& store, PipelineSettings settings)
    : executor_(std::make_unique<Executor>(store, std::move(settings))) {}

Pipeline::~Pipeline() {
    fail(server_closed());
    stop_waiting_for_room();
    wait_until_written();
}

void Pipeline::initialise(std::uint32_t block, const float* values) {
    Shared& shared = executor_->shared;
    for (const store::ChunkPlace& place : shared.layout.chunks_of(block)) {
        store::write_chunk(shared.store, place, 0, values + place.first_element);
        const std::lock_guard lock(shared.mutex);
        shared.stats.bytes_written += place.record_bytes();
    }
}

void Pipeline::finish_initialise() {
    Shared& shared = executor_->shared;
    store::CommitRecord record;
    record.counts.assign(shared.layout.block_count(), 0);
    shared.store.commit(std::move(record));
    const std::lock_guard lock(shared.mutex);
    shared.initialised = true;
}

void Pipeline::set_segments(std::uint32_t block, std::vector<Segment> segments) {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->updates.set_segments(block, std::move(segments));
}

Pipeline::Begun Pipeline::begin(std::uint32_t worker, const std::vector<GroupSettings>& groups,
                                const GradientSettings& gradient) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    const bool failed = shared.failed();
    const auto& commit_after = shared.settings.commit_after;
    if (commit_after && std::chrono::steady_clock::now() - shared.committed_at >= *commit_after) {
        executor_->tell(shared.machine.commit_soon());
    }
    const bool opens = !shared.step().members.anyone_in_step();
    executor_->tell(shared.machine.begin(worker, {groups, gradient}));
    if (opens && !shared.failed()) shared.settings.tracing->begin_attempt(shared.step().progress.step() + 1);
    return {shared.step().abandoned(), shared.step().progress.ended(), failed ? std::nullopt : shared.step().failure};
}

bool Pipeline::serves() {
    Shared& shared = executor_->shared;
    if (!shared.failed() && !shared.initialised) executor_->fail(shared.store.no_values());
    return !shared.failed();
}

void Pipeline::pull(std::uint32_t stream, std::uint32_t block, Reply reply) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    if (!serves()) return reply({false, 0});
    shared.pass.pulled(stream, block);
    executor_->tell(shared.machine.pull(stream, block));
    if (shared.failed()) return reply({false, 0});
    const std::uint64_t bytes = shared.layout.shape().blocks[block].bytes();
    executor_->parameters.hand_out(block,
                                   shared.recorded(trace::Kind::hand_out, stream, block, bytes, std::move(reply)));
    executor_->parameters.read_ahead(stream);
}

void Pipeline::read(std::uint32_t block, Reply reply) {
    const std::lock_guard lock(executor_->shared.mutex);
    if (!serves()) return reply({false, 0});
    executor_->parameters.hand_out(block, std::move(reply));
}

void Pipeline::release(std::uint32_t block) {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->parameters.release(block);
}

void Pipeline::push(std::uint32_t stream, std::uint32_t block, const std::byte* gradient, Reply reply) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    if (!serves()) return reply({false, 0});
    auto actions = shared.machine.push(stream, block);
    if (first<step::Fail>(actions) != nullptr) {
        executor_->tell(std::move(actions));
        return reply({false, 0});
    }
    const std::uint64_t bytes =
        shared.layout.shape().blocks[block].elements * kernels::size_of(shared.gradient_dtype(block));
    executor_->gradients.take(stream, block, gradient,
                              shared.recorded(trace::Kind::collect, stream, block, bytes, std::move(reply)));
    executor_->tell(std::move(actions));
}

void Pipeline::vote(std::uint32_t worker, bool roll_back, Reply reply) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    if (shared.failed()) return reply({false, 0});
    auto actions = shared.machine.vote(worker, roll_back);
    if (const auto* const refuse = first<step::Refuse>(actions)) {
        executor_->fail(refuse->error);
        return reply({false, 0});
    }
    executor_->await_answer(std::move(reply));
    executor_->tell(std::move(actions));
}

void Pipeline::vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    const bool failed = shared.failed();  // before: wait_for_end() tells
    auto actions = shared.machine.vote(worker, roll_back, pushes);
    if (const auto* const refuse = first<step::Refuse>(actions)) throw Error(refuse->error);
    executor_->tell(std::move(actions));
    if (!failed && shared.failed()) throw Error(*shared.step().failure);
}

std::optional<Outcome> Pipeline::wait_for_end(std::uint32_t worker, std::chrono::milliseconds at_most) {
    Shared& shared = executor_->shared;
    std::unique_lock lock(shared.mutex);
    const step::Member& member = shared.step().members.at(worker);
    if (const auto error = step::no_end_to_come(shared.step(), worker)) throw Error(*error);
    shared.changed.wait_for(lock, at_most, [&] { return member.ending || shared.failed(); });
    if (member.ending) return outcome_of(*member.ending);
    if (shared.failed()) throw Error(*shared.step().failure);
    return std::nullopt;
}

LastWord Pipeline::last_word(std::uint32_t worker) { return {*executor_, worker}; }

void Pipeline::epoch_begun() {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->tell(executor_->shared.machine.epoch_begun());
}

std::optional<Error> Pipeline::wait_until_written() {
    while (true) {
        try {
            if (make_durable(std::chrono::hours(1))) return std::nullopt;
        } catch (const Error& error) {
            return error;
        }
    }
}

bool Pipeline::make_durable(std::chrono::milliseconds at_most) {
    Shared& shared = executor_->shared;
    std::unique_lock lock(shared.mutex);
    const step::State& step = shared.step();
    const std::uint64_t answered = step.progress.step();
    const auto written = [&] { return step.progress.durable_step() >= answered; };
    executor_->tell(shared.machine.make_durable());
    executor_->owed.start_due();  // at any price: workers that are in a step may not go on before this ends
    const bool known = shared.changed.wait_for(lock, at_most, [&] { return written() || step.broken; });
    if (known && !written()) throw Error(*step.broken);
    return known;
}

void Pipeline::stop_waiting_for_room() {
    executor_->shared.room.stop();
    if (const auto& replica = executor_->shared.settings.replica) replica->stop_waiting();
}

void Pipeline::joined(std::uint32_t worker) {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->tell(executor_->shared.machine.join(worker));
}

void Pipeline::leave(std::uint32_t worker) {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->tell(executor_->shared.machine.leave(worker));
}

std::optional<std::uint64_t> Pipeline::lose(std::uint32_t worker) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    if (!shared.settings.one_stream) shared.pass.begin_step(worker);  // else it would seem to stand still within one
    const std::uint64_t ended = shared.step().progress.ended();
    executor_->tell(shared.machine.lose(worker));
    const bool over = shared.step().progress.ended() > ended;  // there was nobody else
    if (over || shared.failed() || shared.step().verdict != step::Verdict::lost) return std::nullopt;
    return ended;
}

bool Pipeline::wait_for_place(std::uint32_t worker, std::chrono::milliseconds at_most) {
    Shared& shared = executor_->shared;
    std::unique_lock lock(shared.mutex);
    return shared.changed.wait_for(lock, at_most, [&] { return shared.failed() || shared.step().may_join(worker); });
}

void Pipeline::fail(const Error& error) {
    const std::lock_guard lock(executor_->shared.mutex);
    executor_->fail(error);
}

std::optional<Error> Pipeline::failure() const {
    const std::lock_guard lock(executor_->shared.mutex);
    return executor_->shared.step().failure;
}

PipelineStats Pipeline::stats() const {
    const Shared& shared = executor_->shared;
    const std::lock_guard lock(executor_->shared.mutex);
    PipelineStats stats = shared.stats;
    const step::Progress& progress = shared.step().progress;
    stats.step = progress.step();
    stats.attempts = progress.attempts();
    stats.rolled_back = progress.rolled_back();
    stats.voided = progress.voided();
    stats.clipped = progress.clipped();
    stats.redone = progress.redone();
    stats.loss_scale = progress.loss_scale();
    stats.unwritten = progress.step() - progress.durable_step();
    stats.since_commit_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - shared.committed_at).count();
    stats.waits_for_room = shared.room.waits();
    stats.read_nanoseconds = executor_->parameters.reading_nanoseconds() + executor_->states.reading_nanoseconds();
    stats.write_nanoseconds = executor_->writing.writing_nanoseconds();
    return stats;
}

std::vector<BlockView> Pipeline::look() const {
    const Shared& shared = executor_->shared;
    const std::lock_guard lock(executor_->shared.mutex);
    std::vector<BlockView> views;
    views.reserve(shared.layout.block_count());
    for (std::uint32_t block = 0; block < shared.layout.block_count(); ++block) {
        views.push_back(view_of(shared.step().blocks[block], shared.window.state(block), shared.window.holds(block)));
    }
    return views;
}

const char* Pipeline::io_name() const { return executor_->writing.engine_name(); }

}  // namespace luwu::pipeline
