#include "step_histories.h"

#include <stdexcept>
#include <utility>

#include "step_histories_author.h"
#include "step_histories_reference.h"

namespace luwu::test {

namespace {

constexpr std::uint64_t kEnough = 10;  // histories that differ

// The machine and the reference, which hear of the same events.
class Pair {
  public:
    explicit Pair(const StepSetup& setup) : machine_(setup.rules, setup.standing), reference_(setup) {}

    [[nodiscard]] const step::State& state() const { return machine_.state(); }
    [[nodiscard]] const step::Actions& actions() const { return actions_; }
    [[nodiscard]] bool over() const { return over_; }  // both said that the event cannot happen

    // The difference that the event shows; empty: none.
    [[nodiscard]] std::string happen(const StepEvent& event) {
        step::Actions expected;
        const std::string refused = thrown_by([&] { expected = reference_.happen(event); });
        const std::string threw = thrown_by([&] { actions_ = test::happen(machine_, event); });
        over_ = !refused.empty() || !threw.empty();
        if (refused.empty() != threw.empty()) {
            return threw.empty() ? "the machine goes on; the reference: " + refused : "the machine threw: " + threw;
        }
        if (over_) return "";
        if (!same(expected, actions_)) return "[" + text_of(actions_) + "]; expected [" + text_of(expected) + "]";
        const std::string difference = reference_.difference(machine_.state());
        return difference.empty() ? "" : "the state differs: " + difference;
    }

  private:
    template <class Act>
    static std::string thrown_by(const Act& act) {
        try {
            act();
        } catch (const std::logic_error& error) {
            return error.what();
        }
        return "";
    }

    step::Machine machine_;
    StepReference reference_;
    step::Actions actions_;
    bool over_ = false;
};

// Fewer events that still differ: takes out pieces, ever smaller ones.
std::vector<StepEvent> shrink(const StepSetup& setup, std::vector<StepEvent> events, bool impossible) {
    const auto differs = [&](const std::vector<StepEvent>& some) {
        const auto difference = compare(setup, some);
        return difference && (impossible || !difference->impossible);
    };
    for (std::size_t size = events.size() / 2; size > 0; size /= 2) {
        for (std::size_t at = 0; at + size <= events.size();) {
            std::vector<StepEvent> fewer = events;
            const auto begin = fewer.begin() + static_cast<std::ptrdiff_t>(at);
            fewer.erase(begin, begin + static_cast<std::ptrdiff_t>(size));
            if (differs(fewer)) {
                events = std::move(fewer);
            } else {
                ++at;
            }
        }
    }
    return events;
}

std::string describe(std::uint64_t seed, const StepSetup& setup, const std::vector<StepEvent>& events) {
    const auto difference = compare(setup, events);
    const std::vector<StepEvent> few = shrink(setup, events, difference && difference->impossible);
    std::string text = "seed " + std::to_string(seed) + ": " + text_of(setup) + "\n";
    step::Machine machine(setup.rules, setup.standing);
    for (const StepEvent& event : few) {
        text += "    " + text_of(event);
        try {
            const std::string made = text_of(happen(machine, event));
            text += made.empty() ? "\n" : " -> " + made + "\n";
        } catch (const std::logic_error& error) {
            text += std::string(" threw ") + error.what() + "\n";
        }
    }
    const auto left = compare(setup, few);
    return text + "  " + (left ? left->text : "no difference when it is run again");
}

}  // namespace

std::optional<StepDifference> compare(const StepSetup& setup, const std::vector<StepEvent>& events) {
    Pair pair(setup);
    for (std::size_t at = 0; at < events.size() && !pair.over(); ++at) {
        const std::string difference = pair.happen(events[at]);
        if (!difference.empty()) return StepDifference{at, difference, pair.over()};
    }
    return std::nullopt;
}

StepHistories run_histories(std::uint64_t first, std::uint64_t count) {
    StepHistories found;
    std::vector<StepEvent> events;
    StepShape before;
    for (std::uint64_t seed = first; seed < first + count && found.different < kEnough; ++seed) {
        StepAuthor author(seed);
        Pair pair(author.setup());
        events.clear();
        ++found.histories;
        while (const auto event = author.next(pair.state())) {
            before.take(pair.state());
            events.push_back(*event);
            const std::string difference = pair.happen(*event);
            if (!difference.empty()) {
                if (found.different++ == 0) found.first = describe(seed, author.setup(), events);
                break;
            }
            if (pair.over()) break;
            found.coverage.note(before, *event, pair.actions(), pair.state());
            author.take(pair.actions());
        }
        found.events += events.size();
        found.steps += pair.state().progress.attempts() - author.setup().standing.attempts;
    }
    return found;
}

}  // namespace luwu::test
