// The step machine: rows of every order of events, all of its tables covered, and random histories against a naive
// reference. LUWU_STEP_HISTORIES: the number of histories.
#include <doctest/doctest.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "step_histories.h"
#include "step_histories_rows.h"

using namespace luwu;
using namespace luwu::test;

namespace {

constexpr std::uint64_t kHistories = 20'000;
constexpr std::uint64_t kCovering = 2'000;  // that must show everything

std::uint64_t wanted_histories() {
    const char* asked = std::getenv("LUWU_STEP_HISTORIES");
    return asked == nullptr ? kHistories : std::strtoull(asked, nullptr, 10);
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += name + "\n";
    return text;
}

}  // namespace

TEST_CASE("every row of the step machine's table: an order of events has these actions") {
    StepCoverage coverage;
    const std::vector<std::string> wrong = check_rows(coverage);
    CHECK_MESSAGE(wrong.empty(), joined(wrong));
    CHECK_MESSAGE(coverage.missing().empty(), joined(coverage.missing()));
}

TEST_CASE("what the tables of stages have no row for cannot happen") {
    std::size_t rows = 0;
    for (std::size_t stage = 0; stage < step::kBlockStages; ++stage) {
        for (std::size_t event = 0; event < step::kBlockEvents; ++event) {
            if (step::next_block_stage(static_cast<step::BlockStage>(stage), static_cast<step::BlockEvent>(event)))
                ++rows;
        }
    }
    CHECK(rows == step::kBlockTransitions.size());  // no row stands there twice
    rows = 0;
    for (std::size_t number = 0; number < step::kStages; ++number) {
        for (std::size_t event = 0; event < step::kStageEvents; ++event) {
            const auto stage = static_cast<step::Stage>(number);
            if (step::next_stage(stage, static_cast<step::StageEvent>(event))) {
                ++rows;
            } else {
                CHECK_THROWS_AS((void)step::stage_after(stage, static_cast<step::StageEvent>(event)), std::logic_error);
            }
        }
    }
    CHECK(rows == step::kStageTransitions.size());
}

TEST_CASE("a row with one more event anywhere, one fewer or two exchanged is as in the reference") {
    const std::vector<StepEvent> more{
        event_of("fail"),        event_of("break_down"),     event_of("spoiled"),      event_of("vote 0"),
        event_of("vote 0 back"), event_of("begin 0 plain"),  event_of("join 0"),       event_of("leave 0"),
        event_of("decide no"),   event_of("begin 0 limit"),  event_of("pull 0 a"),     event_of("push 0 a"),
        event_of("vote 0 of 1"), event_of("decide yes inf"), event_of("decide yes 1"), event_of("annul 0"),
    };
    std::uint64_t orders = 0;
    std::string wrong;
    const auto see = [&](const StepOrder& order, const std::vector<StepEvent>& events) {
        ++orders;
        if (!wrong.empty() || !compare(order.setup, events)) return;
        wrong = order.name + ": " + compare(order.setup, events)->text + " after";
        for (const StepEvent& event : events) wrong += "\n" + text_of(event);
    };
    for (const StepOrder& order : row_orders()) {
        const auto& events = order.events;
        for (std::size_t at = 0; at <= events.size(); ++at) {
            const auto place = static_cast<std::ptrdiff_t>(at);
            for (const StepEvent& event : more) {
                std::vector<StepEvent> longer = events;
                longer.insert(longer.begin() + place, event);
                see(order, longer);
            }
            if (at == events.size()) continue;
            std::vector<StepEvent> shorter = events;
            shorter.erase(shorter.begin() + place);
            see(order, shorter);
            for (std::size_t other = at + 1; other < events.size(); ++other) {
                std::vector<StepEvent> exchanged = events;
                std::swap(exchanged[at], exchanged[other]);
                see(order, exchanged);
            }
        }
    }
    CHECK_MESSAGE(wrong.empty(), wrong);
    CHECK(orders > 10'000);
}

TEST_CASE("every order of two workers' events ends one step the same way") {
    // Each worker begins, pushes both blocks and votes, in this order; both in any order of the eight.
    const std::vector<std::vector<std::string>> own{{"begin 0 plain", "push 0 a", "push 0 b", "vote 0 of 2"},
                                                    {"begin 1 plain", "push 1 b", "push 1 a", "vote 1 of 2"}};
    const StepSetup setup = step_setup(2, 2);
    for (unsigned order = 0; order < 256; ++order) {
        if (__builtin_popcount(order) != 4) continue;
        step::Machine machine(setup.rules, setup.standing);
        std::array<std::size_t, 2> next{};
        std::string all;
        for (unsigned at = 0; at < 8; ++at) {
            const std::size_t worker = order >> at & 1U;
            const step::Actions actions = happen(machine, event_of(own[worker][next[worker]++]));
            for (const step::Action& action : actions) {
                all += text_of(action) + "; ";
                if (const auto* update = std::get_if<step::Update>(&action)) {
                    all += text_of(machine.caught_up(update->block));
                    all += text_of(machine.written(update->block));
                }
            }
        }
        CHECK(all.find("record 1/1/0 11") != std::string::npos);
        const std::string end = text_of(machine.recorded());
        CHECK((end == "end committed ab" || end == "end committed ba"));
    }
}

TEST_CASE("a worker's ending is that of the step that it voted on last") {
    const StepSetup setup = step_setup(2, 1, false, true);
    step::Machine machine(setup.rules, setup.standing);
    const auto tell = [&](const char* text) { (void)happen(machine, event_of(text)); };
    const auto told = [&](std::uint32_t worker) { return machine.state().members.at(worker).ending; };
    CHECK_FALSE(told(0).has_value());
    for (const char* text :
         {"begin 0 plain", "begin 1 plain", "push 0 a", "push 1 a", "caught_up a", "written a", "vote 0", "vote 1"}) {
        tell(text);
    }
    CHECK((told(0) && told(0)->end == step::kPrepared));
    tell("decide yes");
    tell("recorded");
    CHECK((told(1) && told(1)->end == step::kPrepared));  // the rest is decide()'s to tell
    CHECK(machine.state().last_end.end == step::kCommitted);
    tell("join 0");
    CHECK_FALSE(told(0).has_value());
    for (const char* text : {"begin 0 plain", "begin 1 plain", "vote 1 back"}) tell(text);
    CHECK_FALSE(told(1).has_value());
    for (const char* text : {"vote 0", "decide no", "taken_back"}) tell(text);
    CHECK((told(0) && told(0)->end == step::kRolledBack));
    CHECK((told(1) && told(1)->end == step::kRolledBack));
    for (const char* text : {"fail", "vote 0"}) tell(text);
    CHECK_FALSE(told(0).has_value());  // of the step before
    CHECK(told(1).has_value());
}

TEST_CASE("random histories are the same as in the naive reference, and cover both tables and every refusal") {
    const StepHistories found = run_histories(1, wanted_histories());
    CHECK_MESSAGE(found.different == 0, found.first);
    if (found.histories >= kCovering) {
        CHECK_MESSAGE(found.coverage.missing().empty(), joined(found.coverage.missing()));
    }
    CHECK(found.steps > found.histories);
}
