#include "step_histories_rows.h"

#include <sstream>
#include <stdexcept>

namespace luwu::test {

namespace {

std::string trimmed(const std::string& text) {
    const auto begin = text.find_first_not_of(' ');
    if (begin == std::string::npos) return "";
    return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

struct Line {
    StepEvent event;
    std::string actions;  // or "!"
};

std::vector<Line> lines_of(const StepRow& row) {
    std::vector<Line> lines;
    std::istringstream text(row.events);
    for (std::string line; std::getline(text, line);) {
        line = trimmed(line);
        if (line.empty()) continue;
        const bool impossible = line.back() == '!';
        if (impossible) line = trimmed(line.substr(0, line.size() - 1));
        const auto arrow = line.find(" -> ");
        const StepEvent event = event_of(line.substr(0, arrow));
        if (text_of(event) != line.substr(0, arrow)) throw std::invalid_argument("a row has no event " + line);
        lines.push_back({event, impossible ? "!" : arrow == std::string::npos ? "" : line.substr(arrow + 4)});
    }
    return lines;
}

void check(const StepRow& row, StepCoverage& coverage, std::vector<std::string>& wrong) {
    step::Machine machine(row.setup.rules, row.setup.standing);
    std::vector<StepEvent> events;
    StepShape before;
    for (const Line& line : lines_of(row)) {
        events.push_back(line.event);
        before.take(machine.state());
        std::string made = "!";
        try {
            const step::Actions actions = happen(machine, line.event);
            made = text_of(actions);
            coverage.note(before, line.event, actions, machine.state());
        } catch (const std::logic_error&) {
        }
        if (made == line.actions) continue;
        wrong.push_back(std::string(row.name) + ": " + text_of(line.event) + " -> " + made + "; expected " +
                        line.actions);
    }
    const auto difference = compare(row.setup, events);
    if (difference) wrong.push_back(std::string(row.name) + ": not as in the reference: " + difference->text);
}

std::array<const std::vector<StepRow>*, 12> tables() {
    return {&kPlainRows,  &kDeferredRows, &kSpeculatingRows, &kCommitPointRows, &kTailRows,   &kSeveralRows,
            &kStreamRows, &kRefusedRows,  &kMemberRows,      &kLostRows,        &kFailedRows, &kImpossibleRows};
}

}  // namespace

std::vector<std::string> check_rows(StepCoverage& coverage) {
    std::vector<std::string> wrong;
    for (const auto* rows : tables()) {
        for (const StepRow& row : *rows) check(row, coverage, wrong);
    }
    return wrong;
}

std::vector<StepOrder> row_orders() {
    std::vector<StepOrder> orders;
    for (const auto* rows : tables()) {
        for (const StepRow& row : *rows) {
            orders.push_back({row.name, row.setup, {}});
            for (const Line& line : lines_of(row)) orders.back().events.push_back(line.event);
        }
    }
    return orders;
}

}  // namespace luwu::test
