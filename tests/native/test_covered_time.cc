#include <doctest/doctest.h>

#include "fabric/shm/covered_time.h"

using luwu::fabric::CoveredTime;
using luwu::fabric::Interval;

TEST_CASE("time that intervals share counts once, in whatever order they are told") {
    CoveredTime time;
    time.add({50, 60});
    time.add({10, 30});
    time.add({20, 40});
    time.add({22, 25});
    CHECK(time.count(100) == 30 + 10);
    CHECK(time.count(100) == 40);
}

TEST_CASE("an interval that is open counts up to now, and its rest when it has ended") {
    CoveredTime time;
    time.add({10, 20});
    CHECK(time.count(40, {{5, 0}}) == 35);
    CHECK(time.count(50, {{5, 0}, {45, 0}}) == 45);
    time.add({5, 60});
    time.add({45, 70});
    CHECK(time.count(100) == 65);
}

TEST_CASE("many intervals ask for a count, which forgets them") {
    CoveredTime time;
    for (std::uint64_t begin = 0; !time.full(); begin += 10) {
        REQUIRE(begin < 1'000'000);
        time.add({begin, begin + 4});
    }
    const std::uint64_t found = time.count(2'000'000);
    CHECK(found > 0);
    CHECK_FALSE(time.full());
    CHECK(time.count(3'000'000) == found);
}
