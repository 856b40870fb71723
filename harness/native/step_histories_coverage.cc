// Counts what histories have shown: rows of the machine's two tables, actions, endings, refusals.
#include <algorithm>

#include "step_histories.h"

namespace luwu::test {

namespace {

constexpr std::size_t kLongestPath = 3;

// Counts the rows of the shortest way from one state to another; with `ends`, one whose last event is the end.
// Returns false where there is none of this length.
template <class Table, class State, class Event>
bool walk(const Table& table, State from, State to, Event end, bool ends, std::size_t length,
          std::array<std::uint64_t, std::tuple_size_v<Table>>& counts) {
    if (length == 0) return from == to;
    for (std::size_t row = 0; row < table.size(); ++row) {
        const auto& [state, event, next] = table[row];
        if (state != from || (event == end) != (ends && length == 1)) continue;
        if (!walk(table, next, to, end, ends, length - 1, counts)) continue;
        ++counts[row];
        return true;
    }
    return false;
}

template <class Table, class State, class Event>
void count_rows(const Table& table, State from, State to, Event end, bool ends,
                std::array<std::uint64_t, std::tuple_size_v<Table>>& counts) {
    if (from == to && !ends) return;
    for (std::size_t length = 1; length <= kLongestPath; ++length) {
        if (walk(table, from, to, end, ends, length, counts)) return;
    }
}

}  // namespace

void StepShape::take(const step::State& state) {
    stage = state.stage;
    block_stages.resize(state.blocks.size());
    std::transform(state.blocks.begin(), state.blocks.end(), block_stages.begin(),
                   [](const step::Block& block) { return block.stage; });
}

const std::vector<std::string>& StepCoverage::refusal_texts() {
    static const std::vector<std::string> texts{
        "with other hyper-parameters",
        "began a step twice",
        "before the one before it was decided on",
        "a step began with max_grad_norm",
        "a step began without max_grad_norm",
        "before it began a step",
        "twice in one step",
        "again after pushing its gradient",
        "ended a step that it had not begun",
        "voted twice on one step",
        " workers; every worker must run the same blocks",
        "was pushed by no worker",
        "blocks in a step and worker",
        "left after step",
        "all workers were lost before this server knew",
    };
    return texts;
}

void StepCoverage::note(const StepShape& before, const StepEvent& event, const step::Actions& made,
                        const step::State& after) {
    ++events[static_cast<std::size_t>(event.kind)];
    bool ends = false;
    for (const step::Action& action : made) {
        ++actions[action.index()];
        const auto* end = std::get_if<step::EndStep>(&action);
        const auto* answer = std::get_if<step::Answer>(&action);
        ends = ends || end != nullptr;
        if (end != nullptr) ++endings[static_cast<std::size_t>(end->ending.end)];
        if (answer != nullptr) ++endings[static_cast<std::size_t>(answer->ending.end)];
        const auto* refusal = std::get_if<step::Refuse>(&action);
        const auto* failure = std::get_if<step::Fail>(&action);
        if (refusal == nullptr && failure == nullptr) continue;
        const std::string text = refusal != nullptr ? refusal->text() : failure->text();
        for (std::size_t at = 0; at < refusals.size(); ++at) {
            if (text.find(refusal_texts()[at]) != std::string::npos) ++refusals[at];
        }
    }
    count_rows(step::kStageTransitions, before.stage, after.stage, step::StageEvent::end, ends, stages);
    for (std::size_t block = 0; block < before.block_stages.size(); ++block) {
        count_rows(step::kBlockTransitions, before.block_stages[block], after.blocks[block].stage,
                   step::BlockEvent::end, ends, blocks);
    }
}

void StepCoverage::add(const StepCoverage& other) {
    const auto sum = [](auto& all, const auto& more) {
        std::transform(all.begin(), all.end(), more.begin(), all.begin(), std::plus<>());
    };
    sum(blocks, other.blocks);
    sum(stages, other.stages);
    sum(actions, other.actions);
    sum(events, other.events);
    sum(refusals, other.refusals);
    sum(endings, other.endings);
}

std::vector<std::string> StepCoverage::missing() const {
    std::vector<std::string> names;
    const auto number = [](auto value) { return std::to_string(static_cast<int>(value)); };
    for (std::size_t row = 0; row < blocks.size(); ++row) {
        const step::BlockTransition& entry = step::kBlockTransitions[row];
        if (blocks[row] == 0) names.push_back("block stage " + number(entry.from) + " event " + number(entry.event));
    }
    for (std::size_t row = 0; row < stages.size(); ++row) {
        const step::StageTransition& entry = step::kStageTransitions[row];
        if (stages[row] == 0) names.push_back("stage " + number(entry.from) + " event " + number(entry.event));
    }
    for (std::size_t at = 0; at < actions.size(); ++at) {
        if (actions[at] == 0) names.push_back("action " + std::to_string(at));
    }
    for (std::size_t at = 0; at < events.size(); ++at) {
        if (events[at] == 0) names.push_back("event " + std::to_string(at));
    }
    for (std::size_t at = 0; at < refusals.size(); ++at) {
        if (refusals[at] == 0) names.push_back("refusal: " + refusal_texts()[at]);
    }
    for (std::size_t at = 0; at < endings.size(); ++at) {
        if (endings[at] == 0) names.push_back("ending " + std::to_string(at));
    }
    return names;
}

}  // namespace luwu::test
