// The votes of many workers on their steps: every order of beginning and voting, threads, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "fabric/core/step_votes.h"

using namespace luwu;
using fabric::StepVotes;
using pipeline::GroupSettings;

namespace {

const std::vector<GroupSettings> kGroups{{0.01, 0.9, 0.999, 1e-8, 0.1}};
const std::vector<GroupSettings> kOthers{{0.02, 0.9, 0.999, 1e-8, 0.1}};
constexpr std::chrono::milliseconds kLong{20'000};
constexpr std::chrono::milliseconds kNow{0};

// Results of the votes, in order: "begun", "given up", "ended 1 5" (rolled back, 5 pushes).
struct Told {
    std::vector<std::string> events;
    std::uint32_t epoch = 7;
    fabric::VoteEvents hear() {
        return {
            [this](const auto& groups, auto) { events.push_back(groups == kGroups ? "begun" : "begun with others"); },
            [this] {
                events.emplace_back("given up");
                ++epoch;
            },
            [this](bool roll_back, std::uint64_t pushes) {
                events.push_back("ended " + std::to_string(roll_back) + " " + std::to_string(pushes));
            }};
    }
};

StepVotes::Begun begin(StepVotes& votes, std::uint32_t worker, const Told& told) {
    return votes.begin(worker, kGroups, {}, [&told] { return told.epoch; });
}

template <class Act>
std::string refusal(Act&& act, ErrorKind kind = ErrorKind::order) {
    try {
        act();
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        return error.what();
    }
    return "nothing was refused";
}

}  // namespace

TEST_CASE("every order of beginning and voting gives one step, and the same outcome") {
    // The order: each worker twice, to begin and to vote.
    std::vector<std::uint32_t> order{0, 0, 1, 1, 2, 2};
    std::uint64_t orders = 0;
    do {
        for (unsigned rolls_back = 0; rolls_back < 8; ++rolls_back) {
            Told told;
            StepVotes votes(3, told.hear());
            std::vector<bool> begun(3, false);
            bool given_up = false;
            std::vector<std::string> expected{"begun"};
            for (std::size_t at = 0; at < order.size(); ++at) {
                const std::uint32_t worker = order[at];
                if (!begun[worker]) {
                    const auto answer = begin(votes, worker, told);
                    CHECK(answer.given_up == given_up);
                    CHECK(answer.epoch == (given_up ? 8 : 7));
                    begun[worker] = true;
                    continue;
                }
                const bool mine = (rolls_back >> worker & 1U) != 0;
                votes.vote(worker, mine, 5);
                if (mine && !std::exchange(given_up, true)) expected.emplace_back("given up");
                CHECK_FALSE(votes.wait(worker, kNow).has_value());
            }
            expected.push_back("ended " + std::to_string(rolls_back != 0) + " 5");
            CHECK(told.events == expected);
            votes.answer({true, rolls_back == 0 ? 1 : 0});
            for (const std::uint32_t worker : {2U, 0U, 1U}) {
                const auto outcome = votes.wait(worker, kLong);
                REQUIRE(outcome.has_value());
                CHECK(outcome->value == (rolls_back == 0 ? 1 : 0));
            }
        }
        ++orders;
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(orders == 90);
}

TEST_CASE("workers in threads of their own go through the same steps") {
    constexpr std::uint32_t kWorkers = 4;
    constexpr std::uint64_t kSteps = 300;
    const auto gives_up = [](std::uint32_t worker, std::uint64_t step) { return (step * 7 + worker * 5) % 11 == 0; };
    StepVotes* answering = nullptr;
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> ended{0};
    std::atomic<std::uint32_t> epoch{1};
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> outcomes;
    StepVotes votes(kWorkers, {[&](const auto&, auto) { ++begun; }, [&] { ++epoch; },
                               [&](bool roll_back, std::uint64_t pushes) {
                                   CHECK((roll_back || pushes == ended % 3 + 1));
                                   ++ended;
                                   const std::lock_guard lock(mutex);
                                   outcomes.push_back(roll_back);
                                   changed.notify_one();
                               }});
    answering = &votes;
    std::thread pipeline([&] {
        for (std::uint64_t step = 0; step < kSteps; ++step) {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return outcomes.size() > step; });
            const bool roll_back = outcomes[step];
            lock.unlock();
            answering->answer({true, roll_back ? 0 : 1});
        }
    });
    std::vector<std::thread> threads;
    for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
        threads.emplace_back([&, worker] {
            std::uint64_t pushes = 0;
            std::uint32_t last_epoch = 0;
            for (std::uint64_t step = 0; step < kSteps; ++step) {
                const auto answer = votes.begin(worker, kGroups, {}, [&] { return epoch.load(); });
                CHECK(answer.epoch >= last_epoch);
                last_epoch = answer.epoch;
                pushes += step % 3 + 1;
                votes.vote(worker, gives_up(worker, step), pushes);
                bool any = false;
                for (std::uint32_t other = 0; other < kWorkers; ++other) any = any || gives_up(other, step);
                const auto outcome = votes.wait(worker, kLong);
                CHECK((outcome.has_value() && outcome->value == (any ? 0 : 1)));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    pipeline.join();
    CHECK(begun == kSteps);
    CHECK(ended == kSteps);
}

TEST_CASE("votes that make no sense are refused by the worker's name") {
    Told told;
    StepVotes votes(2, told.hear());
    const auto vote = [&](std::uint32_t worker, std::uint64_t pushes, bool roll_back = false) {
        return refusal([&] { votes.vote(worker, roll_back, pushes); });
    };
    CHECK(vote(1, 0) == "worker 1 ended a step that it had not begun");
    CHECK(refusal([&] { (void)votes.wait(1, kNow); }).find("worker 1 waits") == 0);
    begin(votes, 0, told);
    CHECK(refusal([&] { begin(votes, 0, told); }) == "worker 0 began a step twice");
    CHECK(refusal([&] { votes.begin(1, kOthers, {}, [] { return 0U; }); }).find("worker 1 began a step with other") ==
          0);
    begin(votes, 1, told);
    votes.vote(0, false, 3);
    CHECK(vote(0, 3) == "worker 0 ended a step that it had not begun");
    CHECK(vote(1, 2).find("worker 0 pushed 3 blocks in a step and worker 1 2;") == 0);
    CHECK(told.events == std::vector<std::string>{"begun"});
    CHECK_THROWS_AS(votes.vote(2, false, 0), std::out_of_range);
}

TEST_CASE("pushes count from the last vote, do not matter where a step is given up, and start anew with a worker") {
    Told told;
    StepVotes votes(2, told.hear());
    const auto step = [&](std::uint64_t first, std::uint64_t second, bool roll_back = false) {
        begin(votes, 0, told);
        begin(votes, 1, told);
        votes.vote(0, roll_back, first);
        votes.vote(1, false, second);
        votes.answer({});
    };
    step(4, 4);
    step(5, 9, true);
    step(8, 12);
    votes.joined(1);
    CHECK(refusal([&] { (void)votes.wait(1, kNow); }).find("worker 1 waits") == 0);
    step(10, 2);
    CHECK(told.events == std::vector<std::string>{"begun", "ended 0 4", "begun", "given up", "ended 1 1", "begun",
                                                  "ended 0 3", "begun", "ended 0 2"});
    begin(votes, 0, told);
    CHECK(refusal([&] { votes.vote(0, false, 9); }).find("worker 0 ended a step") == 0);
}

TEST_CASE("a worker that leaves matters to whoever is in a step, or begins one") {
    Told told;
    StepVotes votes(3, told.hear());
    CHECK_FALSE(votes.leave(2));
    CHECK(refusal([&] { begin(votes, 0, told); }, ErrorKind::worker_lost).find("worker 2 left after step 0") == 0);
    votes.joined(2);
    begin(votes, 2, told);
    CHECK_FALSE(votes.leave(2));  // alone in its step
    votes.joined(2);
    begin(votes, 0, told);
    CHECK(votes.leave(2));
    votes.joined(2);
    for (const std::uint32_t worker : {1U, 2U}) begin(votes, worker, told);
    for (std::uint32_t worker = 0; worker < 3; ++worker) votes.vote(worker, false, 1);
    CHECK(votes.leave(1));  // the others wait for their answer
    votes.answer({});
    CHECK_FALSE(votes.leave(1));
}
