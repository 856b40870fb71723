#include "step/agreement.h"

namespace luwu::step {

std::string name_of(std::uint32_t worker) { return "worker " + std::to_string(worker); }

Error left_too_early(std::uint32_t worker, std::uint64_t step) {
    return {ErrorKind::worker_lost, name_of(worker) + " left after step " + std::to_string(step) +
                                        " and others went on; give every worker the same number of batches"};
}

Error nobody_decides(std::uint64_t step) {
    return {ErrorKind::worker_lost, "all workers were lost before this server knew how the others ended step " +
                                        std::to_string(step) +
                                        "; run again to resume from the last step that all have"};
}

std::string other_settings(std::uint32_t worker, std::uint64_t step) {
    return name_of(worker) + " began step " + std::to_string(step) +
           " with other hyper-parameters than the workers before it; give every worker the same optimizer settings and "
           "schedule";
}

std::optional<Error> no_end_to_come(const State& state, std::uint32_t worker) {
    const Member& member = state.members.at(worker);
    if (state.failed() || member.waits() || member.ending) return std::nullopt;
    return Error(ErrorKind::order, name_of(worker) + " waits for the end of a step that it has not voted on");
}

std::optional<std::string> uneven_pushes(const State& state) {
    const auto differs = state.members.differs_from_first();
    if (!differs) return std::nullopt;
    return name_of(0) + " pushed " + std::to_string(state.members.at(0).in_step) + " blocks in a step and " +
           name_of(*differs) + " " + std::to_string(state.members.at(*differs).in_step) +
           "; every worker must run the same blocks in a step";
}

std::optional<std::string> missing_push(const State& state) {
    const std::uint32_t streams = state.rules.streams();
    for (std::uint32_t block = 0; block < state.blocks.size(); ++block) {
        const std::uint32_t arrived = state.blocks[block].arrived;
        if (arrived == 0 || arrived == streams) continue;
        return "block '" + state.rules.blocks[block].name + "' was pushed by " + std::to_string(arrived) + " of " +
               std::to_string(streams) + " workers; every worker must run the same blocks in a step";
    }
    for (std::uint32_t block = 0; block < state.blocks.size(); ++block) {
        if (!state.rules.blocks[block].trainable || state.blocks[block].arrived == streams) continue;
        return "block '" + state.rules.blocks[block].name +
               "' was pushed by no worker; every worker must push all trainable blocks in a step, zeros where there "
               "is nothing";
    }
    return std::nullopt;
}

}  // namespace luwu::step
