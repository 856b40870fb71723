#include <doctest/doctest.h>

#include <vector>

#include "schedule/pass.h"
#include "schedule/window_cache.h"

using luwu::schedule::Pass;
using luwu::schedule::ResidencyPlan;
using luwu::schedule::WindowCache;

namespace {

void record(Pass& pass, const std::vector<std::uint32_t>& order) {
    pass.begin_step(0);
    for (const std::uint32_t block : order) pass.pulled(0, block);
    pass.end_step();
    pass.begin_step(0);
}

// Two slots, which have blocks 0 and 1, pulled and released.
WindowCache window_with_two_blocks(Pass& pass) {
    ResidencyPlan plan;
    plan.pinned_offset.assign(4, -1);
    plan.slots = 2;
    plan.slot_bytes = 4096;
    WindowCache window(plan, pass);
    for (const std::uint32_t block : {0U, 1U}) {
        REQUIRE(window.place(block));
        window.read_done(block);
        pass.pulled(0, block);
    }
    return window;
}

}  // namespace

TEST_CASE("a pass foretells nothing before the first step, and the recorded order after it") {
    Pass pass(4, 1);
    CHECK_FALSE(pass.next_use(0).has_value());
    CHECK_FALSE(pass.upcoming(0, 0).has_value());
    record(pass, {0, 1, 2, 2, 1});
    CHECK(pass.upcoming(0, 0) == 0U);
    CHECK(pass.upcoming(0, 3) == 2U);
    CHECK(pass.upcoming(0, 5) == 0U);  // across the end of the step
    CHECK(pass.next_use(2) == 2U);
    CHECK_FALSE(pass.next_use(3).has_value());
    pass.pulled(0, 0);
    CHECK(pass.next_use(0) == 4U);
    CHECK(pass.upcoming(0, 0) == 1U);
}

TEST_CASE("the slowest worker's need counts for the next use") {
    Pass pass(3, 2);
    record(pass, {0, 1, 2, 1});
    pass.begin_step(1);
    pass.pulled(0, 0);
    pass.pulled(0, 1);
    CHECK(pass.next_use(0) == 0U);  // worker 1 has not pulled it yet
    pass.pulled(1, 0);
    CHECK(pass.next_use(0) == 2U);
}

TEST_CASE("a pull outside the order moves to the next place where the block occurs") {
    Pass pass(3, 1);
    record(pass, {0, 1, 2, 2, 1});
    pass.pulled(0, 2);
    CHECK(pass.upcoming(0, 0) == 2U);
    pass.pulled(0, 0);
    CHECK(pass.upcoming(0, 0) == 1U);
}

TEST_CASE("the window evicts the unheld block whose next use is farthest") {
    Pass pass(4, 1);
    record(pass, {0, 1, 2, 3, 3, 2, 1, 0});
    WindowCache window = window_with_two_blocks(pass);
    CHECK_FALSE(window.place(2, 5));  // 0 and 1 are needed after 5 and 4 pulls: no sooner than what is asked for
    CHECK(window.place(2, 0));
    CHECK(window.state(0) == WindowCache::State::absent);  // 0 is needed last
    window.read_done(2);
    window.hold(1);
    window.hold(2);
    CHECK_FALSE(window.place(3));  // everything is held
    window.unhold(1);
    CHECK(window.place(3));
    CHECK(window.state(1) == WindowCache::State::absent);
}

TEST_CASE("the window gives a block that awaits its update away last, and never to what is read ahead") {
    Pass pass(4, 1);
    record(pass, {0, 1, 2, 3});
    WindowCache window = window_with_two_blocks(pass);
    CHECK_FALSE(pass.used_again_in_step(0));
    CHECK(pass.used_again_in_step(2));
    window.set_awaits_update(1, true);  // or it would go: its next use is the farthest
    CHECK(window.place(2, 0));
    CHECK(window.state(0) == WindowCache::State::absent);
    CHECK_FALSE(window.place(3, 0));
    CHECK(window.place(3));
    CHECK(window.state(1) == WindowCache::State::absent);
}
