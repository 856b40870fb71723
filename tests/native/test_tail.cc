// Steps that are answered before they are on the disk: what is kept, what waits, and what a death costs.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <utility>

#include "gated_server.h"
#include "support.h"

using namespace luwu;
using luwu::test::Gated;
using luwu::test::kFloat;
using luwu::test::kLow;
using luwu::test::kPlenty;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

// A step of the only worker, push by push.
class Pushes {
  public:
    Pushes(Rig& rig, std::uint64_t step, bool spoil = false) : rig_(rig), step_(step), spoil_(spoil) {
        rig.pipeline().begin(0, {test::kSettings});
    }
    void push(std::uint32_t block) {
        gradients_.push_back(rig_.make_gradient(0, step_, block, spoil_ && block == 2));
        rig_.pipeline().push(0, block, gradients_.back().data(), [this](pipeline::Outcome) { ++answered_; });
    }
    void push_all() { push_from(7); }
    // The blocks before `end`, the last one first.
    void push_from(std::uint32_t end) {
        for (std::uint32_t block = end; block-- > 0;) push(block);
    }
    std::future<std::int64_t> vote() {
        rig_.pipeline().vote(0, false, [this](pipeline::Outcome outcome) { ended_.set_value(outcome.value); });
        return ended_.get_future();
    }
    [[nodiscard]] std::uint32_t answered() const { return answered_; }

  private:
    Rig& rig_;
    std::uint64_t step_;
    bool spoil_;
    std::deque<std::vector<std::byte>> gradients_;
    std::atomic<std::uint32_t> answered_{0};
    std::promise<std::int64_t> ended_;
};

bool is_ready(const std::future<std::int64_t>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

TEST_CASE("a step is answered while nothing of it is on the disk, and the next forward runs") {
    {
        const Scratch scratch;
        {
            Gated gated(scratch, kLow, kPlenty, store::OpenMode::create);
            gated.close_writes();
            CHECK(gated.rig.run_step(0, 1) == pipeline::kCommitted);
            CHECK(gated.rig.pipeline().stats().unwritten == 1);
            CHECK(gated.rig.store().committed().step == 0);
            gated.rig.pipeline().begin(0, {test::kSettings});
            for (std::uint32_t block = 0; block < gated.rig.layout().block_count(); ++block) {
                CHECK(gated.rig.pull(0, block) >= 0);
                gated.rig.pipeline().release(block);
            }
            CHECK_FALSE(gated.rig.pipeline().make_durable(std::chrono::milliseconds(1)));
            gated.open();
            CHECK_FALSE(gated.rig.pipeline().wait_until_written().has_value());
            CHECK(gated.rig.pipeline().stats().unwritten == 0);
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 1)));
    }
}

TEST_CASE("what updates are behind with is kept, and updated once the step is decided") {
    for (const auto dtype : test::variants({kFloat, kLow})) {
        const Scratch scratch;
        {
            const Gated first(scratch, dtype, kPlenty, store::OpenMode::create);
        }
        {
            Gated gated(scratch, dtype, kPlenty, store::OpenMode::open);
            gated.close_reads();  // no update can begin
            Pushes step(gated.rig, 1);
            step.push_all();
            test::wait_until([&] { return step.answered() == 5; });  // blocks of two chunks: four are updated at once
            auto ended = step.vote();
            CHECK_FALSE(is_ready(ended));
            CHECK(step.answered() == 5);
            gated.open();
            CHECK(ended.get() == pipeline::kCommitted);
            CHECK_FALSE(gated.rig.pipeline().wait_until_written().has_value());
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, dtype), test::expected_contents(dtype, 1, 1)));
    }
}

TEST_CASE("what memory cannot keep waits for its update with the worker's buffer") {
    const Scratch scratch;
    {
        const Gated first(scratch, kLow, kPlenty, store::OpenMode::create);
    }
    {
        Gated gated(scratch, kLow, Rig::minimum_bytes(kLow, 1), store::OpenMode::open);
        gated.close_reads();
        Pushes step(gated.rig, 1);
        step.push_all();
        auto ended = step.vote();
        CHECK(step.answered() == 0);
        CHECK_FALSE(is_ready(ended));
        gated.open();
        CHECK(ended.get() == pipeline::kCommitted);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 1)));
}

TEST_CASE("the next step is not decided before the record of an answered one is on the disk") {
    const Scratch scratch;
    {
        Gated gated(scratch, kLow, kPlenty, store::OpenMode::create);
        CHECK(gated.rig.run_step(0, 1) == pipeline::kCommitted);
        CHECK_FALSE(gated.rig.pipeline().wait_until_written().has_value());
        gated.close_writes();
        CHECK(gated.rig.run_step(0, 2) == pipeline::kCommitted);
        Pushes step(gated.rig, 3);
        step.push_all();
        auto ended = step.vote();
        CHECK_FALSE(is_ready(ended));
        CHECK(gated.rig.pipeline().stats().step == 2);
        gated.open();
        CHECK(ended.get() == pipeline::kCommitted);
    }
    CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 3)));
}

TEST_CASE("a step that is not finite is taken back, what was kept and what is written") {
    for (const std::uint64_t memory : {Rig::minimum_bytes(kLow, 1), kPlenty}) {
        const Scratch scratch;
        {
            Gated gated(scratch, kLow, memory, store::OpenMode::create);
            for (std::uint64_t step = 1; step <= 2; ++step) {
                CHECK(gated.rig.run_step(0, step) == pipeline::kCommitted);
                CHECK_FALSE(gated.rig.pipeline().wait_until_written().has_value());
                gated.close_writes();
                const std::uint64_t held = gated.held_writes();
                Pushes spoilt(gated.rig, 9, true);
                spoilt.push(6);
                test::wait_until([&] { return gated.held_writes() > held; });
                spoilt.push_from(6);
                auto ended = spoilt.vote();
                CHECK_FALSE(is_ready(ended));
                gated.open();
                CHECK(ended.get() == pipeline::kNotFinite);
            }
            CHECK(gated.rig.run_step(0, 3) == pipeline::kCommitted);
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 3)));
    }
}

TEST_CASE("a death after the answer costs that step, and the same batch gives its bits") {
    for (const std::uint64_t memory : {Rig::minimum_bytes(kLow, 1), kPlenty}) {
        const Scratch scratch;
        {
            Gated gated(scratch, kLow, memory, store::OpenMode::create);
            CHECK(gated.rig.run_step(0, 1) == pipeline::kCommitted);
            CHECK_FALSE(gated.rig.pipeline().wait_until_written().has_value());
            // With little memory the ring of states holds what is written, so most of the step must be on the disk.
            if (memory == kPlenty) gated.close_writes();
            CHECK(gated.rig.run_step(0, 2) == pipeline::kCommitted);
            gated.die();
            static_cast<void>(gated.rig.pipeline().wait_until_written());
        }
        {
            Gated gated(scratch, kLow, memory, store::OpenMode::open);
            const std::uint64_t step = gated.rig.store().committed().step;
            CHECK((step == 1 || (step == 2 && memory != kPlenty)));
            if (step == 1) CHECK(gated.rig.run_step(0, 2) == pipeline::kCommitted);
        }
        CHECK(test::equal(test::stored_contents({scratch.folder()}, kLow), test::expected_contents(kLow, 1, 2)));
    }
}

TEST_CASE("one server of several answers when all of a step is on the disk") {
    const Scratch scratch;
    Gated gated(scratch, kLow, kPlenty, store::OpenMode::create, true);
    gated.close_writes();
    Pushes step(gated.rig, 1);
    step.push_all();
    auto prepared = step.vote();
    test::wait_until([&] { return step.answered() == 7; });  // memory has all updates
    CHECK_FALSE(is_ready(prepared));
    gated.open();
    CHECK(prepared.get() == pipeline::kPrepared);
    CHECK(gated.rig.decide(true) == pipeline::kCommitted);
    CHECK(gated.rig.pipeline().stats().unwritten == 0);
}
