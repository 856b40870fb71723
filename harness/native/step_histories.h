// Histories of the step machine: events as values and as text, random histories against a naive reference, and what
// was covered. Used by the table tests, by the random test and by benchmarks/step_machine.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "step/machine.h"

namespace luwu::test {

enum class EventKind : std::uint8_t {
    begin,
    pull,
    push,
    vote,
    decide,
    annul,
    join,
    leave,
    lose,
    kept,
    written,
    caught_up,
    spoiled,
    point_written,
    taken_back,
    recorded,
    epoch_begun,
    commit_soon,
    make_durable,
    fail,
    break_down,
};
inline constexpr std::size_t kEventKinds = 21;

struct StepEvent {
    EventKind kind = EventKind::begin;
    std::uint32_t worker = 0;                  // or stream
    std::uint32_t block = 0;                   // or the number of the settings
    bool wanted = false;                       // vote: roll back; decide: commit
    std::optional<std::uint64_t> pushes = {};  // of a vote; annul: attempts that have ended
    double squares = step::kNoSquares;         // kept, decide
};

// Settings that differ in their group, limit or loss scale. `plain` has no limit, `limit` has 1.
inline constexpr std::size_t kStepSettings = 8;
[[nodiscard]] const step::StepSettings& step_settings(std::uint32_t number);
inline constexpr std::array<std::string_view, kStepSettings> kStepSettingsNames{
    "plain", "other", "scaled", "limit", "high", "limit_other", "limit_scaled", "zero"};

// `begin 0 plain`, `pull 0 a`, `push 0 a`, `vote 0 [back] [of 3]`, `decide yes|no [4]`, `annul 3`, `kept a 4`, `written
// a`, ... Blocks are named a, b, c and so on. The text can be read back.
[[nodiscard]] std::string text_of(const StepEvent& event);
[[nodiscard]] StepEvent event_of(std::string_view text);
// `update+keep a`, `settle ab 0.5 [in memory]`, `flush ab`, `follow`, `record 1/1/0 110`, `end committed 4 ab`, `fail
// worker 0 began a step twice`, ...
[[nodiscard]] std::string text_of(const step::Action& action);
[[nodiscard]] std::string text_of(const step::Actions& actions);  // joined by "; "

[[nodiscard]] step::Actions happen(step::Machine& machine, const StepEvent& event);

// State that a transition changes, as it was before an event.
struct StepShape {
    step::Stage stage = step::Stage::collecting;
    std::vector<step::BlockStage> block_stages;

    void take(const step::State& state);
};

// Counts of what histories or rows of tests have shown.
struct StepCoverage {
    std::array<std::uint64_t, step::kBlockTransitions.size()> blocks{};
    std::array<std::uint64_t, step::kStageTransitions.size()> stages{};
    std::array<std::uint64_t, std::variant_size_v<step::Action>> actions{};
    std::array<std::uint64_t, kEventKinds> events{};
    std::vector<std::uint64_t> refusals = std::vector<std::uint64_t>(refusal_texts().size());
    std::array<std::uint64_t, 5> endings{};

    // A part of the text of each refusal and failure that workers can cause.
    [[nodiscard]] static const std::vector<std::string>& refusal_texts();
    // Counts an event, its actions, and the rows of the tables that lead from `before` to `after`.
    void note(const StepShape& before, const StepEvent& event, const step::Actions& actions, const step::State& after);
    void add(const StepCoverage& other);
    // Names of what was not seen; empty: all was.
    [[nodiscard]] std::vector<std::string> missing() const;
};

// A machine's rules and the commit that it starts from.
struct StepSetup {
    step::Rules rules;
    store::CommitRecord standing;
};
[[nodiscard]] StepSetup step_setup(std::uint32_t workers, std::uint32_t blocks, bool one_stream = false,
                                   bool prepares = false);
[[nodiscard]] StepSetup with_commit_points(StepSetup setup, std::uint64_t every, std::uint64_t for_snapshots = 0);
[[nodiscard]] StepSetup with_points_that_follow(StepSetup setup);
[[nodiscard]] StepSetup with_tail(StepSetup setup, std::uint32_t at_once, std::uint32_t room = 0);
[[nodiscard]] std::string text_of(const StepSetup& setup);

// The first difference between the machine and the reference in these events, with its place; nothing: none.
struct StepDifference {
    std::size_t event = 0;
    std::string text;
    bool impossible = false;  // one of both said that the event cannot happen
};
[[nodiscard]] std::optional<StepDifference> compare(const StepSetup& setup, const std::vector<StepEvent>& events);

struct StepHistories {
    std::uint64_t histories = 0;
    std::uint64_t events = 0;
    std::uint64_t steps = 0;
    std::uint64_t different = 0;
    std::string first;  // difference: its seed, shrunk events and text
    StepCoverage coverage;
};
// Runs histories with the seeds `first` to `first` + `count` - 1. Ends early after ten that differ.
[[nodiscard]] StepHistories run_histories(std::uint64_t first, std::uint64_t count);

}  // namespace luwu::test
