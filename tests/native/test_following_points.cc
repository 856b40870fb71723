// Commit points that are written while later steps are made: what goes on meanwhile, and what a death leaves.
#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>

#include "gated_server.h"
#include "schedule/residency.h"
#include "store/snapshots.h"
#include "support.h"

using namespace luwu;
using luwu::test::FailingEngine;
using luwu::test::Gated;
using luwu::test::kFloat;
using luwu::test::kLow;
using luwu::test::kPlenty;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

// The least memory in which everything stays, which leaves none for copies.
std::uint64_t just_enough(kernels::Dtype dtype) {
    const store::Layout layout(test::small_shape(dtype), 1);
    const std::vector<bool> held = Rig::held();
    const auto plan = schedule::plan_residency(layout, kPlenty, 1, held);
    const auto kept = schedule::kept_dtypes(layout, 1, std::nullopt);
    return schedule::plan_clipping(layout, plan, kept).plan.total_bytes;
}

std::uint64_t largest_record(kernels::Dtype dtype) {
    const store::Layout layout(test::small_shape(dtype), 1);
    std::uint64_t bytes = 0;
    for (const store::ChunkPlace& place : layout.chunks()) bytes = std::max(bytes, place.record_bytes());
    return bytes;
}

std::unique_ptr<Gated> open(const Scratch& scratch, kernels::Dtype dtype, std::uint64_t memory, std::uint64_t every,
                            store::OpenMode mode = store::OpenMode::create) {
    return std::make_unique<Gated>(scratch, dtype, memory, mode, false,
                                   [every](pipeline::PipelineSettings& settings) { settings.commit_points = {every}; });
}

std::uint64_t committed(const Gated& gated) {
    const pipeline::PipelineStats stats = gated.rig.pipeline().stats();
    return stats.step - stats.unwritten;
}

}  // namespace

TEST_CASE("the steps after a commit point are made while it is still being written, up to the next one") {
    const Scratch scratch;
    {
        const auto gated = open(scratch, kLow, kPlenty, 2);
        CHECK(gated->rig.run_all(1) == pipeline::kCommitted);
        gated->close_writes();
        CHECK(gated->rig.run_all(2) == pipeline::kCommitted);
        test::wait_until([&] { return gated->held_writes() > 0; });
        CHECK(gated->rig.run_all(3) == pipeline::kCommitted);
        // Its update is in memory, although its record of step 2 is not on the disk.
        const std::uint32_t last = gated->rig.layout().block_count() - 1;
        CHECK(gated->rig.pull(0, last) >= 0);
        gated->rig.pipeline().release(last);
        CHECK(committed(*gated) == 0);
        auto next = std::async(std::launch::async, [&gated] { return gated->rig.run_all(4); });
        CHECK_FALSE(gated->rig.pipeline().make_durable(std::chrono::milliseconds(1)));
        gated->open();
        CHECK(next.get() == pipeline::kCommitted);
        CHECK(committed(*gated) >= 2);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 4)));
}

TEST_CASE("the bits are the same with room for all copies, for some and for none") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        const std::uint64_t least = just_enough(dtype);
        for (const std::uint64_t memory : {least, least + 2 * largest_record(dtype), kPlenty}) {
            for (const std::uint64_t every : {2U, 3U}) {
                CAPTURE(memory);
                CAPTURE(every);
                const Scratch scratch;
                {
                    const auto gated = open(scratch, dtype, memory, every);
                    for (std::uint64_t step = 1; step <= 9; ++step) {
                        gated->close_writes();
                        auto ended = std::async(std::launch::async, [&] { return gated->rig.run_all(step); });
                        gated->open();
                        CHECK(ended.get() == pipeline::kCommitted);
                    }
                }
                CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype),
                                  test::expected_contents(dtype, 1, 9)));
            }
        }
    }
}

TEST_CASE("what is on the disk is the commit point's step, although memory has gone on") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        const std::uint64_t least = just_enough(dtype);
        for (const std::uint64_t memory : {least, least + 2 * largest_record(dtype), kPlenty}) {
            CAPTURE(memory);
            const Scratch scratch;
            {
                const auto gated = open(scratch, dtype, memory, 2);
                CHECK(gated->rig.run_all(1) == pipeline::kCommitted);
                gated->close_writes();
                for (const std::uint64_t step : {2U, 3U}) CHECK(gated->rig.run_all(step) == pipeline::kCommitted);
                test::wait_until([&] { return gated->held_writes() > 0; });
                const std::uint32_t last = gated->rig.layout().block_count() - 1;
                if (memory == kPlenty) CHECK(gated->rig.pull(0, last) >= 0);  // with the update of step 3
                gated->open();
                test::wait_until([&] { return committed(*gated) == 2; });
                for (std::uint32_t block = 0; block <= last; ++block) CHECK(gated->rig.pull(0, block) >= 0);
                gated->die();
                CHECK(gated->rig.pipeline().wait_until_written().has_value());
            }
            CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype), test::expected_contents(dtype, 1, 2)));
        }
    }
}

TEST_CASE("a server that dies while a commit point is being written is at the one before") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        const Scratch scratch;
        {
            const auto gated = open(scratch, dtype, kPlenty, 2);
            for (std::uint64_t step = 1; step <= 2; ++step) CHECK(gated->rig.run_all(step) == pipeline::kCommitted);
            test::wait_until([&] { return committed(*gated) == 2; });
            CHECK(gated->rig.run_all(3) == pipeline::kCommitted);
            gated->close_writes();
            for (std::uint64_t step = 4; step <= 5; ++step) CHECK(gated->rig.run_all(step) == pipeline::kCommitted);
            test::wait_until([&] { return gated->held_writes() > 0; });
            gated->die();
            CHECK(gated->rig.pipeline().wait_until_written().has_value());
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype), test::expected_contents(dtype, 1, 2)));
        {
            const auto gated = open(scratch, dtype, kPlenty, 2, store::OpenMode::open);
            CHECK(gated->rig.pipeline().stats().step == 2);
            for (std::uint64_t step = 3; step <= 6; ++step) CHECK(gated->rig.run_all(step) == pipeline::kCommitted);
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype), test::expected_contents(dtype, 1, 6)));
    }
}

TEST_CASE("a run that fails while a commit point is being written ends at its last answered step") {
    const Scratch scratch;
    {
        const auto gated = open(scratch, kFloat, kPlenty, 2);
        CHECK(gated->rig.run_all(1) == pipeline::kCommitted);
        gated->close_writes();
        for (std::uint64_t step = 2; step <= 3; ++step) CHECK(gated->rig.run_all(step) == pipeline::kCommitted);
        test::wait_until([&] { return gated->held_writes() > 0; });
        gated->rig.pipeline().fail(pipeline::server_closed());
        gated->open();
        CHECK_FALSE(gated->rig.pipeline().wait_until_written().has_value());
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kFloat), test::expected_contents(kFloat, 1, 3)));
}

TEST_CASE("a copy that finds the disk full is written when there is room") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    std::atomic<int> failures{0};
    {
        Rig rig(
            folders, kLow, 1, kPlenty, store::OpenMode::create,
            [&](std::uint32_t depth) {
                return std::make_unique<FailingEngine>(store::make_io_engine(depth),
                                                       [&] { return failures-- > 0 ? ENOSPC : 0; });
            },
            false, kernels::adamw, 2, {}, std::chrono::hours(1),
            [](pipeline::PipelineSettings& settings) { settings.commit_points = {2}; });
        rig.initialise();
        for (std::uint64_t step = 1; step <= 6; ++step) {
            if (step % 2 == 0) failures = 100;  // all of the commit point's
            CHECK(rig.run_all(step) == pipeline::kCommitted);
        }
    }
    CHECK(test::equal(test::stored_contents(folders, kLow), test::expected_contents(kLow, 1, 6)));
}
