#include "pipeline/shared.h"

#include <utility>

namespace luwu::pipeline {

namespace {

step::Rules make_rules(const store::Layout& layout, const PipelineSettings& settings) {
    step::Rules rules;
    for (const store::BlockShape& block : layout.shape().blocks) rules.blocks.push_back({block.name, block.trainable});
    rules.workers = settings.workers;
    rules.one_stream = settings.one_stream;
    rules.prepares = settings.prepares;
    rules.commit_points = settings.commit_points;
    rules.mean = settings.gradient_scale.value_or(1.0F / static_cast<float>(settings.workers));
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
      states(layout, settings.plan),
      room(settings.disk_full_wait),
      initialised(store.initialised()) {}

std::byte* Shared::parameters_of(const store::ChunkPlace& place) const {
    return settings.window + window.offset(place.block) + place.first_element * layout.parameter_size(place.block);
}

kernels::Dtype Shared::gradient_dtype(std::uint32_t block) const {
    return settings.gradient_dtype.value_or(layout.dtype(block));
}

}  // namespace luwu::pipeline
