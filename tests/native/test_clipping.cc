// Clipping by the global norm: the bits of training that clips and then updates, whatever comes between.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <map>
#include <thread>

#include "failing_engine.h"
#include "holding_engine.h"
#include "support.h"

using namespace luwu;
using luwu::test::FailingEngine;
using luwu::test::HoldingEngine;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr std::uint64_t kPlenty = 1U << 28;
constexpr double kNever = 1e9;
constexpr double kAlways = 5;  // norms here are above 80
constexpr std::uint64_t kSteps = 5;

// A limit that some of the steps exceed and others do not.
double between(kernels::Dtype dtype, std::uint32_t workers) {
    std::vector<double> norms;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
        norms.push_back(std::sqrt(test::sum_of_squares(dtype, workers, step)));
    }
    std::sort(norms.begin(), norms.end());
    return (norms[kSteps / 2 - 1] + norms[kSteps / 2]) / 2;
}

std::vector<test::BlockContents> expected(kernels::Dtype dtype, std::uint32_t workers, std::uint64_t steps,
                                          double max_norm) {
    return test::expected_contents(dtype, workers, steps, {}, kernels::adamw, max_norm);
}

// Flips a bit in whatever is read from a file without a name.
class FlippingEngine final : public store::IoEngine {
  public:
    explicit FlippingEngine(std::unique_ptr<store::IoEngine> inner) : inner_(std::move(inner)) {}
    void submit(store::IoRequest& request) override {
        const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(request.file)).string();
        if (request.operation == store::IoRequest::Operation::read && path.ends_with("(deleted)")) {
            scratch_[&request] = static_cast<std::byte*>(request.parts[0].iov_base);
        }
        inner_->submit(request);
    }
    void wait(std::vector<store::IoRequest*>& completed) override {
        inner_->wait(completed);
        for (store::IoRequest* request : completed) {
            if (const auto found = scratch_.extract(request)) found.mapped()[9] ^= std::byte{1};
        }
    }
    void wake() override { inner_->wake(); }
    [[nodiscard]] std::uint32_t depth() const override { return inner_->depth(); }
    [[nodiscard]] const char* name() const override { return "flipping"; }

  private:
    std::unique_ptr<store::IoEngine> inner_;
    std::map<store::IoRequest*, std::byte*> scratch_;
};

}  // namespace

TEST_CASE("clipped training out of core and in memory has the bits of clipping and then updating") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint32_t workers : {1U, 2U, 3U}) {
            for (const std::uint32_t threads : {1U, 3U}) {
                for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, workers), kPlenty}) {
                    for (const double limit : {kNever, kAlways, between(dtype, workers)}) {
                        CAPTURE(static_cast<int>(dtype));
                        CAPTURE(workers);
                        CAPTURE(threads);
                        CAPTURE(memory);
                        CAPTURE(limit);
                        const Scratch scratch;
                        const std::vector<std::string> folders{scratch.folder("one"), scratch.folder("two")};
                        {
                            Rig rig(folders, dtype, workers, memory, store::OpenMode::create, store::make_io_engine,
                                    false, kernels::adamw, threads);
                            rig.max_norm = limit;
                            rig.initialise();
                            for (std::uint64_t step = 1; step <= kSteps; ++step) {
                                CHECK(rig.run_all(step) == 1);
                                CHECK(rig.squares() == test::sum_of_squares(dtype, workers, step));
                            }
                            CHECK(rig.pipeline().stats().step == kSteps);
                            if (limit == kAlways) CHECK(rig.pipeline().stats().clipped == kSteps);
                            if (limit == kNever) CHECK(rig.pipeline().stats().clipped == 0);
                        }
                        CHECK(test::equal(test::stored_contents(folders, dtype),
                                          expected(dtype, workers, kSteps, limit)));
                    }
                }
            }
        }
    }
}

TEST_CASE("states of eight bits are clipped with the bits of clipping and then updating, across a restart") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 2, kernels::adamw_8bit), kPlenty}) {
            for (const double limit : {kNever, kAlways, between(dtype, 2)}) {
                CAPTURE(static_cast<int>(dtype));
                CAPTURE(memory);
                CAPTURE(limit);
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                for (const bool restarted : {false, true}) {
                    Rig rig(folders, dtype, 2, memory, restarted ? store::OpenMode::open : store::OpenMode::create,
                            store::make_io_engine, false, kernels::adamw_8bit, 3);
                    rig.max_norm = limit;
                    if (!restarted) rig.initialise();
                    for (std::uint64_t step = restarted ? 4 : 1; step <= (restarted ? kSteps : 3); ++step) {
                        CHECK(rig.run_all(step) == 1);
                    }
                }
                CHECK(test::equal(test::stored_contents(folders, dtype, kernels::adamw_8bit),
                                  test::expected_contents(dtype, 2, kSteps, {}, kernels::adamw_8bit, limit)));
            }
        }
    }
}

TEST_CASE("gradients are divided by the loss scale before they are clipped, and a commit records it") {
    constexpr auto kHalf = kernels::Dtype::float16;
    constexpr std::uint32_t kWorkers = 2;
    constexpr float kScale = 1024;
    const auto all = test::variants({test::Dtypes(kFloat), test::Dtypes(kHalf), test::Dtypes(kHalf, kFloat)});
    for (const test::Dtypes& dtypes : all) {
        const auto limits = {std::optional<double>(), std::optional(kNever), std::optional(kAlways),
                             std::optional(between(kFloat, kWorkers))};
        for (const std::optional<double>& limit : limits) {
            for (const std::uint64_t memory : {Rig::minimum_bytes(dtypes, kWorkers), kPlenty}) {
                CAPTURE(static_cast<int>(dtypes.even));
                CAPTURE(limit.value_or(-1));
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                const auto wanted =
                    test::expected_contents(dtypes, kWorkers, kSteps, {}, kernels::adamw, limit, kScale);
                {
                    Rig rig(folders, dtypes, kWorkers, memory, store::OpenMode::create);
                    rig.max_norm = limit;
                    rig.initialise();
                    for (std::uint64_t step = 1; step <= kSteps; ++step) {
                        rig.loss_scale = {kScale, step};
                        CHECK(rig.run_all(step) == 1);
                        if (limit) CHECK(rig.squares() == test::sum_of_squares(dtypes, kWorkers, step, kScale));
                    }
                }
                CHECK(test::equal(test::stored_contents(folders, dtypes), wanted));
                if (dtypes.even == kFloat) {  // a power of two changes no bit
                    CHECK(test::equal(wanted, expected(kFloat, kWorkers, kSteps, limit.value_or(kNever))));
                }
                const Rig again(folders, dtypes, kWorkers, kPlenty, store::OpenMode::open);
                const auto recorded = again.pipeline().stats().loss_scale;
                CHECK(recorded.has_value() == again.layout().scales_loss());
                if (recorded) CHECK(*recorded == store::LossScale{kScale, kSteps});
            }
        }
    }
}

TEST_CASE("clipping that never clips has the bits of none") {
    CHECK(test::equal(expected(kLow, 2, 3, kNever), test::expected_contents(kLow, 2, 3)));
}

TEST_CASE("a step after one that was not clipped is updated at once, and again if it is clipped after all") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 1), kPlenty}) {
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            {
                Rig rig(folders, dtype, 1, memory, store::OpenMode::create);
                rig.initialise();
                for (std::uint64_t step = 1; step <= kSteps; ++step) {
                    rig.max_norm = step == 4 ? kAlways : kNever;
                    CHECK(rig.run_all(step) == 1);
                }
                CHECK(rig.pipeline().stats().clipped == 1);
                CHECK(rig.pipeline().stats().redone == 1);
            }
            // Only the fourth differs from training without clipping.
            const auto stored = test::stored_contents(folders, dtype);
            CHECK_FALSE(test::equal(stored, test::expected_contents(dtype, 1, kSteps)));
            const Scratch other;
            const std::vector<std::string> others{other.folder()};
            {
                Rig rig(others, dtype, 1, kPlenty, store::OpenMode::create, store::make_io_engine, true);
                rig.initialise();
                for (std::uint64_t step = 1; step <= kSteps; ++step) {  // one of several servers never speculates
                    rig.max_norm = step == 4 ? kAlways : kNever;
                    CHECK(rig.run_all(step) == pipeline::kPrepared);
                    CHECK(rig.decide(true, rig.squares()) == pipeline::kCommitted);
                }
                CHECK(rig.pipeline().stats().redone == 0);
            }
            CHECK(test::equal(stored, test::stored_contents(others, dtype)));
        }
    }
}

TEST_CASE("gradients that do not fit in memory wait on the disk and come back") {
    const Scratch scratch;
    Rig rig({scratch.folder()}, kLow, 1, Rig::minimum_bytes(kLow, 1), store::OpenMode::create);
    rig.max_norm = kAlways;
    rig.initialise();
    for (std::uint64_t step = 1; step <= 2; ++step) rig.run_all(step);
    rig.pipeline().wait_until_written();
    const auto before = rig.pipeline().stats();
    CHECK(rig.run_all(3) == 1);
    rig.pipeline().wait_until_written();
    std::uint64_t records = 0;
    std::uint64_t gradients = 0;
    for (const auto& place : rig.layout().chunks()) {
        if (!place.trainable) continue;
        records += place.record_bytes();
        gradients += schedule::kept_bytes(place, kLow);
    }
    const std::uint64_t written = rig.pipeline().stats().bytes_written - before.bytes_written;
    CHECK(written > records + gradients / 2);  // some may have found room in memory
    CHECK(written <= records + gradients);
    CHECK(std::filesystem::exists(scratch.folder() + "/version-0.luwu"));
    CHECK_FALSE(std::filesystem::exists(scratch.folder() + "/scratch.luwu"));  // it has no name
}

TEST_CASE("a clipped run rolls a step back that is not finite or that a worker gives up") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 2), kPlenty}) {
            for (const double limit : {kNever, kAlways}) {
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                {
                    Rig rig(folders, dtype, 2, memory, store::OpenMode::create);
                    rig.max_norm = limit;
                    rig.initialise();
                    CHECK(rig.run_all(1, true) == pipeline::kNotFinite);
                    CHECK(std::isnan(rig.squares()));
                    CHECK(rig.run_all(1) == 1);
                    CHECK(rig.run_all(2) == 1);
                    CHECK(rig.run_all(7, true) == pipeline::kNotFinite);
                    CHECK(rig.run_all(3) == 1);
                    std::vector<std::future<std::int64_t>> ends;
                    for (const std::uint32_t worker : {0U, 1U}) {
                        ends.push_back(std::async(std::launch::async, [&rig, worker] {
                            return rig.run_step(worker, 8, false, worker == 1);
                        }));
                    }
                    for (auto& end : ends) CHECK(end.get() == 0);
                    CHECK(rig.squares() == pipeline::kNoSquares);
                    CHECK(rig.run_all(4) == 1);
                    CHECK(rig.pipeline().stats().attempts == 7);
                    CHECK(rig.pipeline().stats().rolled_back == 3);
                }
                CHECK(test::equal(test::stored_contents(folders, dtype), expected(dtype, 2, 4, limit)));
            }
        }
    }
}

TEST_CASE("a server that dies between answer and record loses that step alone, and makes it again") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 1), kPlenty}) {
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            std::atomic<bool> dead{false};
            {
                Rig rig(folders, dtype, 1, memory, store::OpenMode::create, [&](std::uint32_t depth) {
                    return std::make_unique<FailingEngine>(store::make_io_engine(depth),
                                                           [&] { return dead ? EIO : 0; });
                });
                rig.max_norm = kAlways;
                rig.initialise();
                CHECK(rig.run_all(1) == 1);
                CHECK(rig.run_all(2) == 1);
                rig.pipeline().wait_until_written();
                rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {kAlways});
                for (std::uint32_t block = 7; block-- > 0;) {
                    const auto gradient = rig.make_gradient(0, 3, block, false);
                    std::promise<void> taken;
                    rig.pipeline().push(0, block, gradient.data(), [&](pipeline::Outcome) { taken.set_value(); });
                    taken.get_future().wait();
                }
                std::promise<std::int64_t> ended;
                rig.pipeline().vote(0, false, [&](pipeline::Outcome outcome) {
                    dead = true;  // with the lock held: no update has begun
                    ended.set_value(outcome.value);
                });
                CHECK(ended.get_future().get() == pipeline::kCommitted);
                CHECK(rig.pipeline().stats().step == 3);
                rig.pipeline().wait_until_written();
                CHECK(rig.pipeline().failure().has_value());
            }
            CHECK(test::equal(test::stored_contents(folders, dtype), expected(dtype, 1, 2, kAlways)));
            {
                Rig rig(folders, dtype, 1, memory, store::OpenMode::open);
                rig.max_norm = kAlways;
                CHECK(rig.pipeline().stats().step == 2);
                CHECK(rig.pipeline().stats().attempts == 2);
                for (std::uint64_t step = 3; step <= 5; ++step) CHECK(rig.run_all(step) == 1);
            }
            CHECK(test::equal(test::stored_contents(folders, dtype), expected(dtype, 1, 5, kAlways)));
        }
    }
}

TEST_CASE("a step that was answered is written even if the run fails or the server is closed just then") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 2), kPlenty}) {
            for (const bool in_step : {false, true}) {
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                {
                    Rig rig(folders, dtype, 2, memory, store::OpenMode::create);
                    rig.max_norm = kAlways;
                    rig.initialise();
                    CHECK(rig.run_all(1) == 1);
                    CHECK(rig.run_all(2) == 1);
                    std::vector<std::byte> gradient;
                    if (in_step) {  // a worker is in the middle of the next one, and dies there with what it holds
                        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {kAlways});
                        gradient = rig.make_gradient(0, 3, 6, false);
                        CHECK(rig.pull(0, 0) >= 0);
                        CHECK(rig.pull(0, 1) >= 0);
                        rig.pipeline().push(0, 6, gradient.data(), [](pipeline::Outcome) {});
                        rig.pipeline().fail(Error(ErrorKind::worker_lost, "worker 0 is lost"));
                    }
                }
                CHECK(test::equal(test::stored_contents(folders, dtype), expected(dtype, 2, 2, kAlways)));
            }
        }
    }
}

TEST_CASE("who reads between two steps sees what was answered, in any order") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 1), kPlenty}) {
            const Scratch scratch;
            Rig rig({scratch.folder()}, dtype, 1, memory, store::OpenMode::create);
            rig.max_norm = kAlways;
            rig.initialise();
            for (std::uint64_t step = 1; step <= 3; ++step) {
                CHECK(rig.run_all(step) == 1);
                const auto wanted = expected(dtype, 1, step, kAlways);
                for (const std::uint32_t block : {6U, 0U, 5U, 2U, 7U, 1U, 3U, 4U}) {
                    std::promise<std::int64_t> read;
                    rig.pipeline().read(block, [&](pipeline::Outcome outcome) { read.set_value(outcome.value); });
                    const std::byte* found = rig.window() + read.get_future().get();
                    CHECK(std::equal(wanted[block].parameters.begin(), wanted[block].parameters.end(), found));
                    rig.pipeline().release(block);
                }
            }
        }
    }
}

TEST_CASE("blocks that are pushed without having been pulled are clipped, too") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Rig rig(folders, kFloat, 1, Rig::minimum_bytes(kFloat, 1), store::OpenMode::create);
        rig.initialise();
        for (std::uint64_t step = 1; step <= 3; ++step) {
            rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {kAlways});
            for (const std::uint32_t block : {3U, 0U, 6U, 1U, 2U, 5U, 4U}) {  // in another order than ever
                const auto gradient = rig.make_gradient(0, step, block, false);
                std::promise<void> taken;
                rig.pipeline().push(0, block, gradient.data(), [&](pipeline::Outcome) { taken.set_value(); });
                taken.get_future().wait();
            }
            std::promise<std::int64_t> ended;
            rig.pipeline().vote(0, false, [&](pipeline::Outcome outcome) { ended.set_value(outcome.value); });
            CHECK(ended.get_future().get() == pipeline::kCommitted);
        }
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), expected(kFloat, 1, 3, kAlways)));
}

TEST_CASE("a chunk that has its states does not wait for memory of one that waits for states") {
    // States are read ahead after a step that was rolled back, and those reads are slow. Meanwhile all blocks are
    // pushed: whichever was read ahead, it is far from the first in one of the two orders.
    for (const bool first_to_last : {false, true}) {
        const Scratch scratch;
        std::atomic<bool> holds{false};
        std::vector<store::IoEngine*> engines;  // of parameters, of states, of what is written
        Rig rig({scratch.folder()}, kLow, 1, Rig::minimum_bytes(kLow, 1), store::OpenMode::create,
                [&](std::uint32_t depth) -> std::unique_ptr<store::IoEngine> {
                    auto engine = store::make_io_engine(depth);
                    if (engines.size() == 1) engine = std::make_unique<HoldingEngine>(std::move(engine), holds);
                    engines.push_back(engine.get());
                    return engine;
                });
        rig.max_norm = kNever;  // updates are made as gradients come
        rig.initialise();
        CHECK(rig.run_all(1) == 1);
        CHECK(rig.run_all(2) == 1);

        std::vector<std::vector<std::byte>> gradients(7);
        const auto push_all = [&](std::uint64_t step, bool spoil) {
            rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {kNever});
            for (std::uint32_t i = 0; i < 7; ++i) {
                const std::uint32_t block = first_to_last ? i : 6 - i;
                gradients[block] = rig.make_gradient(0, step, block, spoil && block == 2);
                rig.pipeline().push(0, block, gradients[block].data(), [](pipeline::Outcome) {});
            }
        };
        const auto commit = [&](bool then_hold) {
            std::promise<std::int64_t> ended;
            auto end = ended.get_future();
            rig.pipeline().vote(0, false, [&ended, &holds, then_hold](pipeline::Outcome outcome) {
                holds = then_hold;  // with the lock held: nothing is read ahead yet
                ended.set_value(outcome.value);
            });
            const bool in_time = end.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
            if (!in_time) rig.pipeline().fail(Error(ErrorKind::server, "it hangs"));
            end.wait();
            return in_time;
        };
        push_all(3, true);
        REQUIRE(commit(true));
        push_all(3, false);
        holds = false;
        engines[1]->wake();
        CHECK(commit(false));
    }
}

TEST_CASE("a kept gradient that the disk returns with a flipped bit is found") {
    const Scratch scratch;
    Rig rig({scratch.folder()}, kLow, 1, Rig::minimum_bytes(kLow, 1), store::OpenMode::create,
            [](std::uint32_t depth) { return std::make_unique<FlippingEngine>(store::make_io_engine(depth)); });
    rig.max_norm = kAlways;
    rig.initialise();
    CHECK(rig.run_all(1) == 1);  // answered before anything was read back
    rig.pipeline().wait_until_written();
    REQUIRE(rig.pipeline().failure().has_value());
    CHECK(rig.pipeline().failure()->kind() == ErrorKind::corrupt);
    CHECK(std::string(rig.pipeline().failure()->what()).find("scratch.luwu at offset") != std::string::npos);
    CHECK(rig.run_all(2) == -1);
}

TEST_CASE("a run has clipping in all its steps or in none") {
    for (const bool clips : {false, true}) {
        const Scratch scratch;
        Rig rig({scratch.folder()}, kFloat, 1, kPlenty, store::OpenMode::create);
        rig.initialise();
        if (clips) rig.max_norm = kAlways;
        CHECK(rig.run_all(1) == 1);
        rig.max_norm = clips ? std::nullopt : std::optional(kAlways);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {rig.max_norm});
        REQUIRE(rig.pipeline().failure().has_value());
        CHECK(rig.pipeline().failure()->kind() == ErrorKind::order);
    }
}

TEST_CASE("workers that bring different limits are told so") {
    const Scratch scratch;
    Rig rig({scratch.folder()}, kFloat, 2, kPlenty, store::OpenMode::create);
    rig.initialise();
    rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {1.0});
    rig.pipeline().begin(1, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {2.0});
    REQUIRE(rig.pipeline().failure().has_value());
    CHECK(rig.pipeline().failure()->kind() == ErrorKind::order);
}
