// Steps that stay in memory: the bits of a run that writes every step, and what a death between two commit points
// costs.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <future>
#include <thread>

#include "failing_engine.h"
#include "store/snapshots.h"
#include "support.h"

using namespace luwu;
using luwu::test::FailingEngine;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr std::uint64_t kPlenty = 1U << 28;
constexpr std::uint64_t kSteps = 5;

// The least memory of a run that keeps gradients; half of what everything takes; and all.
std::vector<std::uint64_t> memories(kernels::Dtype dtype, std::uint32_t workers) {
    const std::uint64_t least = Rig::minimum_bytes(dtype, workers);
    return {least + (1U << 16), 2 * least, kPlenty};
}

struct Points {
    std::uint64_t every = 1;
    std::optional<std::chrono::nanoseconds> after = {};
    pipeline::SnapshotSettings snapshots = {};
    bool prepares = false;
    const std::atomic<bool>* dead = nullptr;
};

std::unique_ptr<Rig> open(const std::vector<std::string>& folders, kernels::Dtype dtype, std::uint32_t workers,
                          std::uint64_t memory, store::OpenMode mode, const Points& points) {
    const auto make_engine = [dead = points.dead](std::uint32_t depth) -> std::unique_ptr<store::IoEngine> {
        auto engine = store::make_io_engine(depth);
        if (dead == nullptr) return engine;
        return std::make_unique<FailingEngine>(std::move(engine), [dead] { return *dead ? EIO : 0; });
    };
    auto rig =
        std::make_unique<Rig>(folders, dtype, workers, memory, mode, make_engine, points.prepares, kernels::adamw, 2,
                              points.snapshots, std::chrono::nanoseconds(0), [&](pipeline::PipelineSettings& settings) {
                                  settings.commit_points = {points.every, points.snapshots.every};
                                  settings.commit_after = points.after;
                              });
    if (mode == store::OpenMode::create) rig->initialise();
    return rig;
}

// Makes the steps `first` to `last`, and checks what is at stake after each.
void train(Rig& rig, std::uint64_t first, std::uint64_t last, std::uint64_t every) {
    for (std::uint64_t step = first; step <= last; ++step) {
        CHECK(rig.run_all(step) == 1);
        const std::uint64_t at_stake = rig.pipeline().stats().unwritten;
        const std::uint64_t since = every == 0 ? step : step % every;
        CHECK((at_stake == since || (every > 0 && at_stake == since + every)));  // a commit point's record follows
    }
}

// The process ends with what the disk has. A write must have failed before the server closes: where the last step's
// chunks are all written already, it would still make their record.
void die(Rig& rig, std::atomic<bool>& dead, std::uint64_t next_step) {
    dead = true;
    static_cast<void>(rig.run_all(next_step));
    CHECK(rig.pipeline().wait_until_written().has_value());
}

std::uint64_t written_by_a_step(const store::Layout& layout) {
    std::uint64_t bytes = 0;
    for (const store::ChunkPlace& place : layout.chunks()) bytes += place.trainable ? place.record_bytes() : 0;
    return bytes;
}

}  // namespace

TEST_CASE("a run that writes some steps has the bits of one that writes all, and its end is on the disk") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint32_t workers : {1U, 2U}) {
            for (const std::uint64_t memory : memories(dtype, workers)) {
                for (const std::uint64_t every : {0U, 2U, 3U, 5U}) {
                    CAPTURE(memory);
                    CAPTURE(every);
                    const Scratch scratch;
                    const std::vector<std::string> folders{scratch.folder("one"), scratch.folder("two")};
                    train(*open(folders, dtype, workers, memory, store::OpenMode::create, {.every = every}), 1, kSteps,
                          every);
                    CHECK(test::equal(test::stored_contents(folders, dtype),
                                      test::expected_contents(dtype, workers, kSteps)));
                }
            }
        }
    }
}

TEST_CASE("a server that dies is at its last commit point, and goes on from there with the same bits") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : memories(dtype, 1)) {
            for (const std::uint64_t every : {0U, 2U, 3U}) {
                CAPTURE(memory);
                CAPTURE(every);
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                std::atomic<bool> dead{false};
                {
                    const Points points{.every = every, .dead = &dead};
                    const auto rig = open(folders, dtype, 1, memory, store::OpenMode::create, points);
                    train(*rig, 1, kSteps, every);
                    const std::uint64_t since = every == 0 ? kSteps : kSteps % every;
                    test::wait_until([&] { return rig->pipeline().stats().unwritten == since; });
                    die(*rig, dead, kSteps + 1);
                }
                const std::uint64_t survives = every == 0 ? 0 : kSteps - kSteps % every;
                CHECK(test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, 1, survives)));
                {
                    const auto rig = open(folders, dtype, 1, memory, store::OpenMode::open, {.every = every});
                    CHECK(rig->pipeline().stats().step == survives);
                    train(*rig, survives + 1, kSteps + 1, every);
                }
                CHECK(
                    test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, 1, kSteps + 1)));
            }
        }
    }
}

TEST_CASE("where everything fits, a step that is no commit point writes nothing") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    const auto rig = open(folders, kLow, 1, kPlenty, store::OpenMode::create, {.every = 4});
    const std::uint64_t before = rig->pipeline().stats().bytes_written;
    train(*rig, 1, 3, 4);
    CHECK(rig->pipeline().stats().bytes_written == before);
    train(*rig, 4, 7, 4);
    test::wait_until([&] { return rig->pipeline().stats().unwritten == 3; });
    CHECK(rig->pipeline().stats().bytes_written == before + written_by_a_step(rig->layout()));
}

// disk_bytes has a model of which a part fits.
TEST_CASE("where nothing fits every step writes all, and the gradients that wait") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    const std::uint64_t memory = 2 * Rig::minimum_bytes(kFloat, 1);
    const auto rig = open(folders, kFloat, 1, memory, store::OpenMode::create, {.every = 0});
    // Some steps and a flush, after which all of their writes are over.
    const auto written_by = [&](std::uint64_t first, std::uint64_t last) {
        const std::uint64_t before = rig->pipeline().stats().bytes_written;
        for (std::uint64_t step = first; step <= last; ++step) CHECK(rig->run_all(step) == 1);
        CHECK_FALSE(rig->pipeline().wait_until_written().has_value());
        CHECK(rig->pipeline().stats().unwritten == 0);
        return rig->pipeline().stats().bytes_written - before;
    };
    const std::uint64_t all = written_by_a_step(rig->layout());
    const std::uint64_t kept = written_by(1, 1) - all;
    CHECK(kept < all);
    CHECK(written_by(2, 6) == 5 * (all + kept));
}

TEST_CASE("attempts that are not finite, given up or void cost nothing between commit points") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : memories(dtype, 2)) {
            CAPTURE(memory);
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            {
                const auto rig = open(folders, dtype, 2, memory, store::OpenMode::create, {.every = 3});
                CHECK(rig->run_all(1, true) == pipeline::kNotFinite);
                CHECK(rig->run_all(1) == 1);
                CHECK(rig->run_all(7, true) == pipeline::kNotFinite);
                CHECK(rig->run_all(2) == 1);
                std::vector<std::future<std::int64_t>> ends;
                for (const std::uint32_t worker : {0U, 1U}) {
                    ends.push_back(std::async(std::launch::async,
                                              [&rig, worker] { return rig->run_step(worker, 8, false, worker == 1); }));
                }
                for (auto& end : ends) CHECK(end.get() == pipeline::kRolledBack);
                CHECK(rig->squares() == pipeline::kNoSquares);
                for (std::uint64_t step = 3; step <= kSteps; ++step) CHECK(rig->run_all(step) == 1);
                CHECK(rig->pipeline().stats().rolled_back == 3);
                CHECK(rig->run_all(6, true) == pipeline::kNotFinite);  // before the end
            }
            CHECK(test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, 2, kSteps)));
        }
    }
}

TEST_CASE("a clipped run has the same bits with commit points") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        for (const std::uint64_t memory : memories(dtype, 1)) {
            for (const double limit : {5.0, 1e9}) {  // norms here are above 80
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder()};
                {
                    const auto rig = open(folders, dtype, 1, memory, store::OpenMode::create, {.every = 2});
                    rig->max_norm = limit;
                    train(*rig, 1, kSteps, 2);
                    CHECK(rig->squares() == test::sum_of_squares(dtype, 1, kSteps));
                }
                CHECK(test::equal(test::stored_contents(folders, dtype),
                                  test::expected_contents(dtype, 1, kSteps, {}, kernels::adamw, limit)));
            }
        }
    }
}

TEST_CASE("when the time is over the next step is a commit point, and not before") {
    for (const bool over : {false, true}) {
        const std::chrono::nanoseconds after = over ? std::chrono::nanoseconds(0) : std::chrono::hours(1);
        const Scratch scratch;
        const auto rig =
            open({scratch.folder()}, kFloat, 1, kPlenty, store::OpenMode::create, {.every = 0, .after = after});
        for (std::uint64_t step = 1; step <= 3; ++step) {
            CHECK(rig->run_all(step) == 1);
            if (over) test::wait_until([&] { return rig->pipeline().stats().unwritten == 0; });
        }
        if (!over) CHECK(rig->pipeline().stats().unwritten == 3);
    }
}

TEST_CASE("a snapshot that is due has its step, although no other step is a commit point") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        const auto rig = open(folders, kFloat, 1, kPlenty, store::OpenMode::create, {.every = 0, .snapshots = {2, 0}});
        for (std::uint64_t step = 1; step <= kSteps; ++step) CHECK(rig->run_all(step) == 1);
    }
    CHECK(store::snapshot_steps(folders) == std::vector<std::uint64_t>{2, 4});
    for (const std::uint64_t step : {2U, 4U}) {
        CHECK(test::equal(test::stored_contents(store::snapshot_folders(folders, step), kFloat),
                          test::expected_contents(kFloat, 1, step)));
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, kSteps)));
}

TEST_CASE("what was answered can be made durable at any time, also while the next step is under way") {
    for (const std::uint64_t memory : memories(kFloat, 1)) {
        const Scratch scratch;
        const std::vector<std::string> folders{scratch.folder()};
        std::atomic<bool> dead{false};
        {
            const auto rig = open(folders, kFloat, 1, memory, store::OpenMode::create, {.every = 0, .dead = &dead});
            std::atomic<std::uint64_t> answered{0};
            std::thread training([&] {
                for (std::uint64_t step = 1; step <= 20; ++step) {
                    CHECK(rig->run_all(step) == 1);
                    answered = step;
                    answered.notify_all();
                }
            });
            for (std::uint64_t at_least = 0; at_least < 20; at_least = answered) {
                answered.wait(at_least);
                CHECK_FALSE(rig->pipeline().wait_until_written().has_value());
                const pipeline::PipelineStats stats = rig->pipeline().stats();
                CHECK(stats.step - stats.unwritten > at_least);
            }
            training.join();
            CHECK_FALSE(rig->pipeline().wait_until_written().has_value());
            dead = true;
        }
        CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 20)));
    }
}

TEST_CASE("servers that prepare their steps commit the same ones, and go back to the one that all have") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    std::atomic<bool> dead{false};
    {
        const Points points{.every = 2, .prepares = true, .dead = &dead};
        const auto rig = open(folders, kFloat, 1, kPlenty, store::OpenMode::create, points);
        for (std::uint64_t step = 1; step <= 3; ++step) {
            CHECK(rig->run_all(step) == pipeline::kPrepared);
            CHECK(rig->decide(true) == pipeline::kCommitted);
        }
        CHECK(rig->run_all(4) == pipeline::kPrepared);
        CHECK(rig->decide(false) == pipeline::kRolledBack);
        CHECK(rig->run_all(4) == pipeline::kPrepared);
        CHECK(rig->decide(true) == pipeline::kCommitted);
        CHECK_FALSE(rig->pipeline().wait_until_written().has_value());
        dead = true;
    }
    store::ChunkStore store(folders, store::Layout(test::small_shape(kFloat), 1), test::kUuid, store::OpenMode::open);
    REQUIRE(store.before().has_value());
    CHECK(store.before()->step == 2);
    store.go_back();
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 2)));
}
