#include "bindings/server_parts.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace luwu::bindings {

namespace {

constexpr double kLongestSeconds = 1e6;

}  // namespace

fabric::ServerSettings make_server_settings(const std::vector<std::string>& folders, const std::string& uuid,
                                            bool create, const std::vector<BlockSpec>& blocks,
                                            std::uint64_t chunk_elements, const std::string& optimizer,
                                            std::uint64_t memory_bytes, std::uint32_t workers,
                                            std::uint32_t optimizer_threads, const Snapshots& snapshots,
                                            double disk_full_wait_seconds, const Durable& durable,
                                            std::uint32_t trims) {
    fabric::ServerSettings settings;
    settings.folders = folders;
    settings.uuid = make_uuid(uuid);
    settings.mode = create ? store::OpenMode::create : store::OpenMode::open;
    settings.shape = make_shape(blocks, chunk_elements, optimizer);
    for (const BlockSpec& block : blocks) settings.held.push_back(block.held);
    settings.memory_bytes = memory_bytes;
    settings.workers = workers;
    settings.optimizer_threads = optimizer_threads;
    settings.trims = trims;
    settings.snapshots = {std::get<0>(snapshots), std::get<1>(snapshots)};
    settings.disk_full_wait = std::chrono::nanoseconds(std::llround(disk_full_wait_seconds * 1e9));
    const auto [steps, seconds] = durable;
    settings.commit_points.every = steps;
    if (seconds > 0) settings.commit_after = std::chrono::nanoseconds(std::llround(seconds * 1e9));
    return settings;
}

std::vector<pipeline::GroupSettings> make_groups(const std::vector<Group>& groups) {
    std::vector<pipeline::GroupSettings> settings;
    for (const Group& group : groups) {
        if (group.size() > kernels::kHyperParameters) {
            throw Error(ErrorKind::invalid, "a parameter group has " + std::to_string(group.size()) +
                                                " hyper-parameters; expected at most " +
                                                std::to_string(kernels::kHyperParameters));
        }
        std::copy(group.begin(), group.end(), settings.emplace_back().begin());
    }
    return settings;
}

pipeline::GradientSettings make_gradient_settings(std::optional<double> max_norm,
                                                  const std::optional<LossScale>& loss_scale) {
    pipeline::GradientSettings settings{.max_norm = max_norm};
    if (loss_scale) {
        const auto& [scale, good_steps] = *loss_scale;
        if (!(scale > 0) || !std::isfinite(scale)) {
            throw Error(ErrorKind::invalid, "a loss scale is a finite number above 0; found " + std::to_string(scale));
        }
        settings.loss_scale = {scale, good_steps};
    }
    return settings;
}

std::optional<double> known(double squares) {
    return squares == pipeline::kNoSquares ? std::nullopt : std::optional<double>(squares);
}

std::chrono::milliseconds milliseconds(const char* name, double seconds) {
    if (!(seconds >= 0) || seconds > kLongestSeconds) {
        throw Error(ErrorKind::invalid, std::string(name) + ": expected 0 to " + std::to_string(kLongestSeconds) +
                                            " seconds, found " + std::to_string(seconds));
    }
    return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::optional<StepEnding> make_ending(const std::optional<pipeline::Outcome>& outcome) {
    if (!outcome) return std::nullopt;
    return StepEnding{outcome->value, known(outcome->squares)};
}

void set_segments(fabric::ParameterServer& server, std::uint32_t block, const Segments& segments) {
    std::vector<pipeline::Segment> converted;
    for (const auto& [end, group] : segments) converted.push_back({end, group});
    server.set_segments(block, std::move(converted));
}

bool make_durable(fabric::ParameterServer& server, double at_most_seconds) {
    return server.make_durable(milliseconds("at_most_seconds", at_most_seconds));
}

bool finish(fabric::ParameterServer& server, double at_most_seconds) {
    server.fail(pipeline::server_closed());
    try {
        return make_durable(server, at_most_seconds);
    } catch (const Error&) {  // close() throws it
        return true;
    }
}

nb::object failure_of(const fabric::ParameterServer& server) {
    const auto failure = server.failure();
    return failure ? make_exception(*failure) : nb::none();
}

namespace {

// Returns folder, bytes, and the end of the wait in seconds since 1970; None while there is room.
nb::object make_room_wait(const std::optional<pipeline::RoomWait>& wait) {
    if (!wait) return nb::none();
    const std::chrono::duration<double> until = wait->until.time_since_epoch();
    return nb::make_tuple(nb::str(wait->folder.c_str()), wait->needed_bytes, until.count());
}

}  // namespace

nb::bytes look_at_blocks(const fabric::ParameterServer& server) {
    const std::vector<pipeline::BlockView> views = server.look();
    static_assert(sizeof(pipeline::BlockView) == 1);
    return nb::bytes(views.data(), views.size());
}

nb::dict stats_of(const fabric::ParameterServer& server) {
    const fabric::ServerStats stats = server.stats();
    nb::dict result;
    result["step"] = stats.step;
    result["attempts"] = stats.attempts;
    result["rolled_back"] = stats.rolled_back;
    result["loss_scale"] = stats.loss_scale ? nb::cast(stats.loss_scale->scale) : nb::none();
    result["good_steps"] = stats.loss_scale ? stats.loss_scale->good_steps : 0;
    result["unwritten"] = stats.unwritten;
    result["since_commit_seconds"] = stats.since_commit_seconds;
    result["voided"] = stats.voided;
    result["clipped"] = stats.clipped;
    result["redone"] = stats.redone;
    result["bytes_pulled"] = stats.bytes_pulled;
    result["bytes_pushed"] = stats.bytes_pushed;
    result["bytes_read"] = stats.bytes_read;
    result["bytes_written"] = stats.bytes_written;
    result["pulls"] = stats.pulls;
    result["pulls_waited"] = stats.pulls_waited;
    result["chunks_updated"] = stats.chunks_updated;
    result["states_waited"] = stats.states_waited;
    result["elements_updated"] = stats.elements_updated;
    result["update_seconds"] = static_cast<double>(stats.update_nanoseconds) * 1e-9;
    result["read_seconds"] = static_cast<double>(stats.read_nanoseconds) * 1e-9;
    result["write_seconds"] = static_cast<double>(stats.write_nanoseconds) * 1e-9;
    result["planned_bytes"] = server.memory().plan().total_bytes;
    result["minimum_bytes"] = server.memory().plan().minimum_bytes;
    result["everything_resident"] = server.memory().plan().everything_resident();
    const auto [io, direct] = server.io();
    result["io"] = io;
    result["direct_io"] = direct;
    result["waits_for_room"] = make_room_wait(stats.waits_for_room);
    result["snapshots"] = stats.snapshots.taken;
    result["snapshot_failure"] = nb::str(stats.snapshots.failure.c_str());
    return result;
}

}  // namespace luwu::bindings
