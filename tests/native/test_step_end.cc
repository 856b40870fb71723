// The votes of many workers on their steps, where one stream brings the sum of their gradients: every order of
// beginning and voting, threads, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fabric/core/parameter_server.h"
#include "fabric/udp/task_queue.h"
#include "step/machine.h"
#include "support.h"

using namespace luwu;
using pipeline::GroupSettings;

namespace {

const step::StepSettings kSettings{{{0.01, 0.9, 0.999, 1e-8, 0.1}}, {}};
const step::StepSettings kOthers{{{0.02, 0.9, 0.999, 1e-8, 0.1}}, {}};
constexpr std::chrono::milliseconds kLong{20'000};

step::Rules rules(std::uint32_t workers) {
    step::Rules rules;
    rules.blocks.assign(12, {"b", false});  // frozen, so that a step may leave some of them out
    rules.workers = workers;
    rules.one_stream = true;
    return rules;
}

// A machine whose actions are carried out at once, but for a new epoch. What was told, in order: "epoch", "failed:
// why", "refused: why", "ended 1" (as StepEnd).
struct Told {
    explicit Told(std::uint32_t workers) : machine(rules(workers), standing()) {}

    static store::CommitRecord standing() {
        store::CommitRecord record;
        record.counts.assign(12, 0);
        return record;
    }
    void tell(const step::Actions& actions) {
        for (const step::Action& action : actions) {
            if (const auto* update = std::get_if<step::Update>(&action)) {
                tell(machine.caught_up(update->block));
                tell(machine.written(update->block));
            }
            if (std::holds_alternative<step::TakeBack>(action)) tell(machine.taken_back());
            if (std::holds_alternative<step::WriteRecord>(action)) tell(machine.recorded());
            if (std::holds_alternative<step::BeginEpoch>(action)) events.emplace_back("epoch");
            if (const auto* fail = std::get_if<step::Fail>(&action)) events.push_back("failed: " + fail->text());
            if (const auto* refuse = std::get_if<step::Refuse>(&action)) events.push_back("refused: " + refuse->text());
            if (const auto* end = std::get_if<step::EndStep>(&action)) {
                events.push_back("ended " + std::to_string(end->ending.end));
                pushed = 0;
            }
        }
    }
    void begin(std::uint32_t worker, const step::StepSettings& settings = kSettings) {
        tell(machine.begin(worker, settings));
    }
    void push(std::uint32_t blocks) {
        for (; blocks > 0; --blocks) tell(machine.push(0, pushed++));
    }
    void vote(std::uint32_t worker, std::uint64_t pushes, bool roll_back = false) {
        tell(machine.vote(worker, roll_back, pushes));
    }
    [[nodiscard]] std::string last() const { return events.empty() ? "nothing" : events.back(); }
    [[nodiscard]] bool given_up() const { return machine.state().verdict == step::Verdict::given_up; }

    step::Machine machine;
    std::uint32_t pushed = 0;  // blocks of this step
    std::vector<std::string> events;
};

// A new store whose server gets the sum of all workers' gradients.
fabric::ServerSettings one_stream_store(const test::Scratch& scratch) {
    fabric::ServerSettings settings;
    settings.folders = {scratch.folder()};
    settings.uuid = test::kUuid;
    settings.mode = store::OpenMode::create;
    settings.shape = test::small_shape(kernels::Dtype::float32);
    settings.held.assign(settings.shape.blocks.size(), false);
    settings.memory_bytes = std::uint64_t{1} << 28;
    settings.one_stream = true;
    return settings;
}

void initialise(fabric::ParameterServer& server) {
    for (std::uint32_t block = 0; block < server.layout().block_count(); ++block) {
        const std::vector<float> values(server.layout().shape().blocks[block].elements, 0.5F);
        server.initialise(block, values.data());
    }
    server.finish_initialise();
}

}  // namespace

TEST_CASE("every order of beginning and voting gives one step, and the same outcome") {
    constexpr std::uint32_t kPushes = 5;
    // The order: each worker twice, to begin and to vote.
    std::vector<std::uint32_t> order{0, 0, 1, 1, 2, 2};
    std::uint64_t orders = 0;
    do {
        for (unsigned rolls_back = 0; rolls_back < 8; ++rolls_back) {
            for (const std::uint32_t early : {0U, 2U, kPushes}) {  // pushes that the votes do not overtake
                Told told(3);
                bool given_up = false;
                for (std::size_t at = 0; at < order.size(); ++at) {
                    const std::uint32_t worker = order[at];
                    if (told.machine.state().members.at(worker).standing == step::Standing::resting) {
                        told.begin(worker);
                        CHECK(told.given_up() == given_up);
                        if (at == 0) told.push(early);
                        continue;
                    }
                    const bool mine = (rolls_back >> worker & 1U) != 0;
                    told.vote(worker, kPushes, mine);
                    given_up = given_up || mine;
                    CHECK(told.given_up() == given_up);
                    if (at + 1 < order.size()) CHECK(told.events.size() == (given_up ? 1 : 0));
                }
                if (given_up) {  // the sums may never come, but what did is still to be dropped
                    CHECK(told.events == std::vector<std::string>{"epoch"});
                    told.tell(told.machine.epoch_begun());
                } else {
                    CHECK(told.events.size() == (early == kPushes ? 1 : 0));
                    told.push(kPushes - early);
                }
                CHECK(told.last() == (given_up ? "ended 0" : "ended 1"));
                CHECK(told.events.size() == (given_up ? 2 : 1));
                for (const std::uint32_t worker : {2U, 0U, 1U}) {
                    const auto& ending = told.machine.state().members.at(worker).ending;
                    REQUIRE(ending.has_value());
                    CHECK(ending->end == (given_up ? step::kRolledBack : step::kCommitted));
                }
            }
        }
        ++orders;
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(orders == 90);
}

TEST_CASE("workers in threads of their own go through the same steps") {
    constexpr std::uint32_t kWorkers = 4;
    constexpr std::uint64_t kSteps = 60;
    const auto gives_up = [](std::uint32_t worker, std::uint64_t step) { return (step * 7 + worker * 5) % 11 == 0; };
    const test::Scratch scratch;
    const std::vector<std::byte> gradient(1 << 16);  // outlives the server
    fabric::ServerSettings settings = one_stream_store(scratch);
    settings.workers = kWorkers;
    std::unique_ptr<fabric::ParameterServer> server;
    fabric::TaskQueue tasks("test-tasks");
    std::atomic<std::uint64_t> epochs{0};
    settings.on_given_up = [&] {
        tasks.post([&] {
            ++epochs;
            server->epoch_begun();
        });
    };
    server = std::make_unique<fabric::ParameterServer>(settings, [](const Error&) {});
    initialise(*server);
    const std::uint32_t trainable = server->layout().block_count() - 1;  // the last one is frozen
    std::vector<std::thread> threads;
    for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
        threads.emplace_back([&, worker] {
            for (std::uint64_t step = 0; step < kSteps; ++step) {
                CHECK_FALSE(server->begin(worker, kSettings.groups).refusal.has_value());
                if (worker == 0) {
                    for (std::uint32_t block = 0; block < trainable; ++block) {
                        server->push(0, block, gradient.data(), [](pipeline::Outcome) {});
                    }
                }
                server->vote(worker, gives_up(worker, step), (step + 1) * trainable);
                bool any = false;
                for (std::uint32_t other = 0; other < kWorkers; ++other) any = any || gives_up(other, step);
                const auto outcome = server->wait_for_end(worker, kLong);
                CHECK((outcome.has_value() && outcome->value == (any ? 0 : 1)));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(server->stats().attempts == kSteps);
    CHECK(server->stats().rolled_back == epochs);
    tasks.stop();
}

TEST_CASE("an exception of an action ends the run with its text, and the server goes on to say so") {
    const test::Scratch scratch;
    fabric::ServerSettings settings = one_stream_store(scratch);
    settings.on_given_up = [] { throw std::runtime_error("no epoch"); };
    std::vector<std::string> told;
    fabric::ParameterServer server(settings, [&](const Error& error) { told.emplace_back(error.what()); });
    initialise(server);
    CHECK_FALSE(server.begin(0, kSettings.groups).refusal.has_value());
    CHECK(test::kind_of([&] { server.vote(0, true, 0); }, "the server cannot go on: no epoch") == ErrorKind::server);
    CHECK(told == std::vector<std::string>{"the server cannot go on: no epoch"});
    CHECK(test::kind_of([&] { static_cast<void>(server.wait_for_end(0, kLong)); }, "no epoch") == ErrorKind::server);
}

TEST_CASE("votes that make no sense are refused by the worker's name") {
    SUBCASE("a vote without a step") {
        Told told(2);
        told.vote(1, 0);
        CHECK(told.last() == "failed: worker 1 ended a step that it had not begun");
    }
    SUBCASE("two beginnings") {
        Told told(2);
        told.begin(0);
        told.begin(0);
        CHECK(told.last() == "failed: worker 0 began a step twice");
    }
    SUBCASE("other settings") {
        for (const bool voted : {false, true}) {  // also after the first worker's vote
            Told told(2);
            told.begin(0);
            if (voted) told.vote(0, 0);
            told.begin(1, kOthers);
            CHECK(told.last().find("failed: worker 1 began step 1 with other hyper-parameters than") == 0);
        }
    }
    SUBCASE("two votes") {
        Told told(2);
        told.begin(0);
        told.begin(1);
        told.vote(0, 3);
        told.vote(0, 3);
        CHECK(told.last() == "refused: worker 0 voted twice on one step");
        told.vote(1, 2);
        CHECK(told.last().find("failed: worker 0 pushed 3 blocks in a step and worker 1 2;") == 0);
    }
}

TEST_CASE("pushes count from the last vote, do not matter where a step is given up, and start anew with a worker") {
    Told told(2);
    const auto step = [&](std::uint64_t first, std::uint64_t second, std::uint32_t pushes, bool roll_back = false) {
        told.begin(0);
        told.begin(1);
        told.push(pushes);
        told.vote(0, first, roll_back);
        told.vote(1, second);
        if (roll_back) told.tell(told.machine.epoch_begun());
    };
    step(4, 4, 4);
    step(5, 9, 1, true);
    step(8, 12, 3);
    told.tell(told.machine.join(1));
    CHECK_FALSE(told.machine.state().members.at(1).ending.has_value());
    step(10, 2, 2);
    CHECK(told.events == std::vector<std::string>{"ended 1", "epoch", "ended 0", "ended 1", "ended 1"});
    told.begin(0);
    told.vote(0, 9);
    CHECK(told.last() == "failed: worker 0 ended a step that it had not begun");
}

TEST_CASE("a worker that leaves matters to whoever is in a step, or begins one") {
    SUBCASE("begins one") {
        Told told(3);
        told.tell(told.machine.leave(2));
        CHECK(told.events.empty());
        told.begin(0);
        CHECK(told.last().find("failed: worker 2 left after step 0 and others went on;") == 0);
        CHECK(told.machine.state().failure->kind() == ErrorKind::worker_lost);
    }
    SUBCASE("replaced, and alone in its step") {
        Told told(3);
        told.tell(told.machine.leave(2));
        told.tell(told.machine.join(2));
        told.begin(2);
        told.tell(told.machine.leave(2));
        told.tell(told.machine.join(2));
        CHECK(told.events.empty());
        told.begin(0);
        told.tell(told.machine.leave(2));
        CHECK(told.last().find("failed: worker 2 left") == 0);
    }
    SUBCASE("others wait for their answer") {
        Told told(3);
        for (std::uint32_t worker = 0; worker < 3; ++worker) told.begin(worker);
        for (std::uint32_t worker = 0; worker < 3; ++worker) told.vote(worker, 1);
        told.tell(told.machine.leave(1));
        CHECK(told.last().find("failed: worker 1 left") == 0);
    }
    SUBCASE("they have it") {
        Told told(3);
        for (std::uint32_t worker = 0; worker < 3; ++worker) told.begin(worker);
        told.push(1);
        for (std::uint32_t worker = 0; worker < 3; ++worker) told.vote(worker, 1);
        told.tell(told.machine.leave(1));
        CHECK(told.events == std::vector<std::string>{"ended 1"});
    }
}
