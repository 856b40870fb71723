// Random histories of the step machine against the naive reference. Prints one JSON object; the exit status is 1 where
// a history differs.
//
// usage: luwu_step_machine FIRST_SEED HISTORIES
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "step_histories.h"
#include "step_histories_rows.h"

namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') out += '\\';
        out += letter == '\n' ? std::string("\\n") : std::string(1, letter);
    }
    return out + "\"";
}

template <class Counts>
std::string list(const Counts& counts) {
    std::string out = "[";
    for (const auto& count : counts) out += (out.size() == 1 ? "" : ", ") + std::to_string(count);
    return out + "]";
}

int check_rows() {
    luwu::test::StepCoverage coverage;
    const auto wrong = luwu::test::check_rows(coverage);
    for (const std::string& line : wrong) std::printf("%s\n", line.c_str());
    return wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    using namespace luwu;
    if (count == 2 && std::string(arguments[1]) == "rows") return check_rows();
    if (count != 3) {
        std::fprintf(stderr, "usage: luwu_step_machine FIRST_SEED HISTORIES | rows\n");
        return 2;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto found =
        test::run_histories(std::strtoull(arguments[1], nullptr, 10), std::strtoull(arguments[2], nullptr, 10));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::string missing = "[";
    for (const std::string& name : found.coverage.missing())
        missing += (missing.size() == 1 ? "" : ", ") + quoted(name);
    std::printf(
        "{\"histories\": %llu, \"events\": %llu, \"steps\": %llu, \"different\": %llu, \"seconds\": %.3f, "
        "\"first\": %s, \"missing\": %s], \"block_transitions\": %s, \"stage_transitions\": %s, \"actions\": %s, "
        "\"refusals\": %s, \"endings\": %s}\n",
        static_cast<unsigned long long>(found.histories), static_cast<unsigned long long>(found.events),
        static_cast<unsigned long long>(found.steps), static_cast<unsigned long long>(found.different), seconds,
        quoted(found.first).c_str(), missing.c_str(), list(found.coverage.blocks).c_str(),
        list(found.coverage.stages).c_str(), list(found.coverage.actions).c_str(),
        list(found.coverage.refusals).c_str(), list(found.coverage.endings).c_str());
    return found.different == 0 ? 0 : 1;
}
