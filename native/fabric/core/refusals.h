// Refusals that several parts of the fabric give. Each decision and its text stand here alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/error.h"

namespace luwu::fabric {

void check_worker(std::uint32_t worker, std::uint64_t workers);  // throws Error(invalid): the server has no such worker
// Throws Error(invalid) where so many workers' gradients cannot be trimmed, or come as one sum.
void check_trims(std::uint32_t trims, std::uint32_t workers, bool one_stream);
void check_no_values(bool initialised);  // throws Error(order): first values come once
void check_network(bool started);        // throws Error(order): a step begins, and there is no network yet

// Refusals of a worker's request, which begin with its name. They fail the run, so they are returned.
[[nodiscard]] std::optional<Error> unknown_block(const std::string& who, std::uint32_t block, std::uint64_t blocks);
// `or_else`: the other reason, where the caller does not tell them apart.
[[nodiscard]] Error frozen_push(const std::string& who, const std::string& block, const std::string& or_else = "");

}  // namespace luwu::fabric
