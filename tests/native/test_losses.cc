// Packets that a full queue loses are told from those that are damaged on the way.
#include <doctest/doctest.h>

#include <cmath>

#include "fabric/protocol/losses.h"

namespace luwu::test {

namespace {

using fabric::kMillisecond;
using fabric::Losses;
using fabric::Time;
using Verdict = Losses::Verdict;

// Periods of 4 ms in which a window is used.
struct Periods {
    Losses losses;
    Time now = 1'000 * kMillisecond;

    Verdict tell(std::uint64_t arrived, std::uint64_t lost, bool used = true) {
        now += 4 * kMillisecond;
        losses.count(arrived, lost, used);
        return losses.judge(now);
    }
    // The end of a trial whose first period, and then whose others, have these losses.
    Verdict trial(std::uint64_t arrived, std::uint64_t lost) {
        REQUIRE(losses.trying());
        REQUIRE(tell(arrived, 50) == Verdict::none);  // of before
        for (int period = 0; period < 20; ++period) {
            if (const Verdict verdict = tell(arrived, lost); verdict != Verdict::none) return verdict;
        }
        return Verdict::none;
    }
};

}  // namespace

TEST_CASE("losses: a few are no suspicion, and more are") {
    Periods link;
    for (int period = 0; period < 100; ++period) CHECK(link.tell(350, 3) == Verdict::none);
    CHECK_FALSE(link.losses.trying());
    CHECK(link.tell(315, 35) == Verdict::suspicion);
    CHECK(link.losses.share() == doctest::Approx(0.1));
    CHECK(link.losses.trying());
    CHECK_FALSE(link.losses.suspicious());
}

TEST_CASE("losses: where a smaller window loses none, the window before was too large") {
    Periods link;
    REQUIRE(link.tell(315, 35) == Verdict::suspicion);
    CHECK(link.trial(300, 0) == Verdict::overflow);
    CHECK_FALSE(link.losses.trying());
    CHECK(link.tell(340, 10) == Verdict::suspicion);  // and it is so again
}

TEST_CASE("losses: where a smaller window loses as many, they are damaged, and no more is made of it") {
    Periods link;
    REQUIRE(link.tell(315, 35) == Verdict::suspicion);
    CHECK(link.trial(280, 30) == Verdict::damage);
    for (int period = 0; period < 1'000; ++period) CHECK(link.tell(315, 35) == Verdict::none);
    CHECK(link.tell(200, 150) == Verdict::suspicion);  // of which damage explains a tenth
}

TEST_CASE("losses: damage is tried anew after ten seconds") {
    Periods link;
    REQUIRE(link.tell(315, 35) == Verdict::suspicion);
    REQUIRE(link.trial(280, 30) == Verdict::damage);
    Time tried = link.now;
    Verdict verdict = Verdict::none;
    while (verdict == Verdict::none) verdict = link.tell(315, 35);
    CHECK(verdict == Verdict::suspicion);
    CHECK(link.now - tried > 9'900 * kMillisecond);
    CHECK(link.now - tried < 10'100 * kMillisecond);
}

TEST_CASE("losses: a window that is not used fills no queue") {
    Periods link;
    for (int period = 0; period < 3; ++period) CHECK(link.tell(15, 8, false) == Verdict::none);
    CHECK(link.tell(60, 1) == Verdict::none);  // nor do its losses count once it is
}

TEST_CASE("losses: a trial in which hardly anything is sent ends") {
    Periods link;
    REQUIRE(link.tell(315, 35) == Verdict::suspicion);
    CHECK(link.trial(0, 0) == Verdict::unknown);
    CHECK_FALSE(link.losses.trying());
}

}  // namespace luwu::test
