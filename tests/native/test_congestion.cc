// A sender's window follows the news of its heartbeats.
#include <doctest/doctest.h>

#include <algorithm>

#include "fabric/protocol/congestion.h"

namespace luwu::test {

namespace {

using fabric::Congestion;
using fabric::kMillisecond;
using fabric::Time;
using fabric::TripTime;

constexpr Time kOffset = Time{0} - 7'000 * kMillisecond;  // of the other end's clock: behind ours

// Heartbeats every millisecond over a link that takes a tenth of one each way, with these queues.
struct Heartbeats {
    Congestion congestion{4096, 1408, 5 * kMillisecond};
    Time now = 1'000 * kMillisecond;
    std::uint64_t under_way = 4096;

    void tell(int count, Time queue_there, Time queue_back, std::uint64_t arrived, std::uint64_t lost = 0,
              std::uint64_t marked = 0) {
        for (int i = 0; i < count; ++i) {
            now += kMillisecond;
            const Time there = kMillisecond / 10 + queue_there;
            congestion.observe(now, {there + kMillisecond / 10 + queue_back, there + kOffset}, under_way, arrived, lost,
                               marked);
        }
    }
};

}  // namespace

TEST_CASE("congestion: a window grows while the way there is free") {
    Heartbeats link;
    const auto first = link.congestion.window();
    link.tell(5, 0, 0, 10);
    CHECK(link.congestion.window() > first);
    link.tell(2000, kMillisecond, 0, 100);
    CHECK(link.congestion.window() == 4096);
}

TEST_CASE("congestion: a window that is not used does not grow") {
    Heartbeats link;
    const auto first = link.congestion.window();
    link.under_way = first / 3;
    link.tell(1000, 0, 0, 10);
    CHECK(link.congestion.window() == first);
}

TEST_CASE("congestion: a queue on the way back slows nobody down") {
    Heartbeats link;
    link.tell(10, 0, 0, 10);
    link.tell(2000, 0, 20 * kMillisecond, 100);
    CHECK(link.congestion.window() == 4096);
}

TEST_CASE("congestion: a queue on the way there shrinks the window, and its end lets it grow again") {
    Heartbeats link;
    link.tell(10, 0, 0, 100);
    const auto before = link.congestion.window();
    link.tell(1, 20 * kMillisecond, 0, 100);
    CHECK(link.congestion.window() < before);
    link.tell(500, 20 * kMillisecond, 0, 10);
    const auto least = link.congestion.window();
    CHECK(least < 20);
    link.tell(500, 0, 0, 10);
    CHECK(link.congestion.window() > 10 * least);
}

TEST_CASE("congestion: a little loss does not slow down, much does") {
    Heartbeats link;
    link.tell(300, 0, 0, 95, 5);
    CHECK(link.congestion.window() == 4096);
    link.tell(300, 0, 0, 50, 50);
    CHECK(link.congestion.window() < 20);
}

TEST_CASE("congestion: the first marks halve the window, and from then on it follows the share of marked packets") {
    Heartbeats all;
    Heartbeats few;
    for (Heartbeats* link : {&all, &few}) {
        link->tell(300, 0, 0, 100);
        REQUIRE(link->congestion.window() == 4096);
        const std::uint64_t marked = link == &all ? 100 : 1;
        for (int i = 0; i < 20 && link->congestion.window() == 4096; ++i) {
            link->tell(1, 0, 0, 100, 0, marked);
        }
        CHECK(link->congestion.window() == 2048);
        link->tell(300, 0, 0, 100, 0, marked);
    }
    // As much as arrives until the next heartbeat has told of it: 100 packets in a millisecond, and a fifth of one.
    CHECK(all.congestion.window() >= 120);
    CHECK(all.congestion.window() < 160);
    // A hundredth of all packets takes half a hundredth of the window.
    few.tell(1000, 0, 0, 100);
    REQUIRE(few.congestion.window() == 4096);
    for (int i = 0; i < 20 && few.congestion.window() == 4096; ++i) few.tell(1, 0, 0, 100, 0, 1);
    CHECK(few.congestion.window() < 4096);
    CHECK(few.congestion.window() > 4050);
}

TEST_CASE("congestion: a queue that overflows sets the window, and growth is slow near it") {
    Heartbeats link;
    link.tell(300, 0, 0, 100);
    REQUIRE(link.congestion.window() == 4096);
    const auto overflow = [&link](int count, std::uint64_t room) {
        std::uint64_t most = 0;
        for (int i = 0; i < count; ++i) {
            const std::uint64_t window = link.congestion.window();
            const std::uint64_t lost = window > room ? (window - room) / 10 : 0;
            link.tell(1, 0, 0, 100, lost);
            most = std::max(most, link.congestion.window());
        }
        return most;
    };
    overflow(200, 1000);
    CHECK(link.congestion.window() < 1100);
    CHECK(link.congestion.window() > 600);
    CHECK(overflow(400, 1000) < 1200);
    CHECK(overflow(4000, 1'000'000) == 4096);  // the queue has room again
}

TEST_CASE("congestion: an outage halves the window once, and what it loses does not last") {
    Heartbeats link;
    link.tell(300, 0, 0, 100);
    link.tell(1, 0, 0, 0, 4096);
    link.tell(3, 0, 0, 0);
    CHECK(link.congestion.window() >= 1024);
    link.tell(200, 0, 0, 100);
    CHECK(link.congestion.window() == 4096);
}

TEST_CASE("congestion: a queue that never ends is measured by draining it") {
    Heartbeats link;
    link.tell(10, 0, 0, 10);
    bool drained = false;
    for (int i = 0; i < 11'000 && !drained; ++i) {
        const auto before = link.congestion.window();
        link.tell(1, 4 * kMillisecond, 0, 10);
        drained = link.congestion.window() < 20 && before > 1000;
    }
    REQUIRE(drained);
    link.tell(20, 0, 0, 10);
    CHECK(link.congestion.window() > 1000);
}

TEST_CASE("congestion: another clock at the other end is no queue") {
    Heartbeats link;
    link.tell(300, 0, 0, 100);
    link.tell(300, 3'600'000 * kMillisecond, 0, 100);
    CHECK(link.congestion.window() == 4096);
}

}  // namespace luwu::test
