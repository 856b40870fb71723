#include "pipeline/shared.h"

#include <algorithm>
#include <utility>

#include "pipeline/io_stage.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

namespace {

// More chunks than have a buffer for their states, or than threads can take next, would only wait.
step::Tail tail_of(const store::Layout& layout, const PipelineSettings& settings) {
    // A step that another server has not recorded yet must not be overwritten here; and between commit points all
    // gradients are kept in any case.
    if (settings.prepares || !settings.commit_points.is_each_step()) return {};
    const auto dtypes = schedule::kept_dtypes(layout, settings.streams(), settings.gradient_dtype);
    return {std::max(2 * settings.optimizer_threads, settings.plan.state_buffers),
            schedule::plan_tail(layout, settings.plan, dtypes).buffers};
}

// Writes of a commit point need not hold up later steps where memory keeps everything, because nothing else is written
// then. With several servers they do, so that each server has a commit that all have.
bool points_follow(const store::Layout& layout, const PipelineSettings& settings) {
    if (settings.prepares || settings.commit_points.is_each_step()) return false;
    const auto dtypes = schedule::kept_dtypes(layout, settings.streams(), settings.gradient_dtype);
    try {
        const auto planned = schedule::plan_clipping(layout, settings.plan, dtypes);
        return planned.plan.everything_resident() && planned.kept.buffers == 0;
    } catch (const Error&) {
        return false;  // the first step fails
    }
}

step::Rules make_rules(const store::Layout& layout, const PipelineSettings& settings) {
    step::Rules rules;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        const store::BlockShape& shape = layout.shape().blocks[block];
        rules.blocks.push_back(
            {shape.name, shape.trainable, static_cast<std::uint32_t>(layout.chunks_of(block).size())});
    }
    rules.workers = settings.workers;
    rules.one_stream = settings.one_stream;
    rules.prepares = settings.prepares;
    rules.commit_points = settings.commit_points;
    rules.points_follow = points_follow(layout, settings);
    rules.tail = tail_of(layout, settings);
    const float mean = settings.trims > 0 ? 1.0F : 1.0F / static_cast<float>(settings.workers);
    rules.mean = settings.gradient_scale.value_or(mean);
    return rules;
}

}  // namespace

Shared::Shared(store::ChunkStore& store_, PipelineSettings settings_)
    : store(store_),
      layout(store.layout()),
      settings(std::move(settings_)),
      machine(make_rules(layout, settings), store.committed()),
      pass(layout.block_count(), settings.streams()),
      window(settings.plan, pass),
      states(layout, settings.plan, settings.nodes),
      room(settings.disk_full_wait),
      recorder(settings.tracing->recorder),
      initialised(store.initialised()) {}

std::uint64_t Shared::step_of_read(std::uint32_t block) const {
    const bool updated = parts.updates->changed(block) && !parts.updates->started(block);
    return step_of_update(block) + (updated ? 1 : 0);
}

void Shared::note(trace::Kind kind, const IoTask& task) {
    recorder.end({.begin_ns = task.begun_ns,
                  .bytes = task.bytes,
                  .step = static_cast<std::uint32_t>(task.step),
                  .block = place(task.chunk).block,
                  .chunk = task.chunk,
                  .kind = kind});
}

Reply Shared::recorded(trace::Kind kind, std::uint32_t stream, std::uint32_t block, std::uint64_t bytes, Reply reply) {
    if (!recorder.on()) return reply;
    const trace::Record span{.begin_ns = trace::Recorder::now(),
                             .bytes = bytes,
                             .step = static_cast<std::uint32_t>(step().progress.step() + 1),
                             .block = block,
                             .worker = settings.one_stream ? trace::kNobody : trace::worker_number(stream),
                             .kind = kind};
    return [this, span, reply = std::move(reply)](Outcome outcome) {
        recorder.end(span);
        reply(outcome);
    };
}

std::byte* Shared::parameters_of(const store::ChunkPlace& place) const {
    return settings.window + window.offset(place.block) + place.first_element * layout.parameter_size(place.block);
}

kernels::Dtype Shared::gradient_dtype(std::uint32_t block) const {
    return settings.gradient_dtype.value_or(layout.dtype(block));
}

}  // namespace luwu::pipeline
