// Agreement of all workers within a step: the message for those that differ, or ask for what cannot come. Pure.
#pragma once

#include <optional>
#include <string>

#include "step/state.h"
#include "store/error.h"

namespace luwu::step {

[[nodiscard]] std::string name_of(std::uint32_t worker);
[[nodiscard]] Error left_too_early(std::uint32_t worker, std::uint64_t step);
[[nodiscard]] Error nobody_decides(std::uint64_t step);
[[nodiscard]] std::string other_settings(std::uint32_t worker, std::uint64_t step);
// A worker asks how its step ended, and has voted on none since it joined.
[[nodiscard]] std::optional<Error> no_end_to_come(const State& state, std::uint32_t worker);

// With one stream for all, when all have voted: a worker that counted other pushes than the first.
[[nodiscard]] std::optional<std::string> uneven_pushes(const State& state);
// At the end of a step that nobody gave up: a block that some workers pushed and others did not, or that no worker did.
// A commit has all trainable blocks, each one version on: docs/store-format.md.
[[nodiscard]] std::optional<std::string> missing_push(const State& state);

}  // namespace luwu::step
