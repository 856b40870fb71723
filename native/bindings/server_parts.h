// Common parts of the bindings of every server: its settings, and its stats.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/store_shape.h"
#include "fabric/core/parameter_server.h"

namespace luwu::bindings {

using Group = std::vector<double>;  // an optimizer's settings of one parameter group, in its own order
using Segments = std::vector<std::tuple<std::uint64_t, std::uint32_t>>;

using Snapshots = std::tuple<std::uint64_t, std::uint64_t>;  // steps between two, and the number to keep
using Durable = std::tuple<std::uint64_t, double>;           // commit points: every so many steps, or seconds; 0: none
inline constexpr Durable kEachStep{1, 0.0};

[[nodiscard]] bool make_durable(fabric::ParameterServer& server, double at_most_seconds);
[[nodiscard]] bool finish(fabric::ParameterServer& server, double at_most_seconds);

// Docstrings that all servers share.
inline constexpr const char* kMakeDurable =
    "Returns True once the last step that was answered is on the disk, commit point or not; False: that takes longer. "
    "Raises the store's error where it cannot get there.";
inline constexpr const char* kFinish =
    "Fails the run, and returns True once every step that was answered is on the disk, or cannot get there; False: it "
    "takes longer, ask again. A write that finds no room waits for it meanwhile.";
inline constexpr const char* kClose =
    "As `finish`, without a wait for room. Raises the store's error where a step that was answered is lost.";
inline constexpr const char* kFailure = "def failure(self) -> luwu.core.errors.LuwuError | None";
inline constexpr const char* kLook = "Returns what the server does with each block now: a byte each, a BlockView.";

[[nodiscard]] fabric::ServerSettings make_server_settings(
    const std::vector<std::string>& folders, const std::string& uuid, bool create, const std::vector<BlockSpec>& blocks,
    std::uint64_t chunk_elements, const std::string& optimizer, std::uint64_t memory_bytes, std::uint32_t workers,
    std::uint32_t optimizer_threads, const Snapshots& snapshots, double disk_full_wait_seconds, const Durable& durable,
    std::uint32_t trims);
// End of a step: pipeline::StepEnd, and the sum of squares, where it is known.
using StepEnding = std::tuple<std::int64_t, std::optional<double>>;
[[nodiscard]] std::optional<double> known(double squares);
[[nodiscard]] std::chrono::milliseconds milliseconds(const char* name, double seconds);
[[nodiscard]] std::optional<StepEnding> make_ending(const std::optional<pipeline::Outcome>& outcome);
using LossScale = std::tuple<double, std::uint64_t>;  // and the steps in a row that were committed at it
[[nodiscard]] pipeline::GradientSettings make_gradient_settings(std::optional<double> max_norm,
                                                                const std::optional<LossScale>& loss_scale);
[[nodiscard]] std::vector<pipeline::GroupSettings> make_groups(const std::vector<Group>& groups);
void set_segments(fabric::ParameterServer& server, std::uint32_t block, const Segments& segments);
[[nodiscard]] nanobind::object failure_of(
    const fabric::ParameterServer& server);  // an exception of luwu.errors, or None
[[nodiscard]] nanobind::dict stats_of(const fabric::ParameterServer& server);
[[nodiscard]] nanobind::bytes look_at_blocks(const fabric::ParameterServer& server);

}  // namespace luwu::bindings
