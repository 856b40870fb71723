// Effect of heartbeats on a link's end, and refused wiring.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "fabric/protocol/link.h"
#include "fabric/protocol/windows.h"
#include "last_sent.h"
#include "simulated_network.h"
#include "store/error.h"

namespace luwu::test {

namespace {

using fabric::Head;
using fabric::Heartbeat;
using fabric::kMillisecond;
using fabric::Link;
using fabric::NetworkTiming;
using fabric::Packet;
using fabric::PacketDrop;
using fabric::PacketDrops;
using fabric::Seal;
using fabric::Wiring;

constexpr NetworkTiming kTiming{kMillisecond / 2, 50 * kMillisecond, 50 * kMillisecond, 1'000 * kMillisecond,
                                5 * kMillisecond};

// Two ends, each with a clock of its own.
struct Ends {
    Seal seal{1, 2, 256};
    Link child{seal, kTiming, address_of(1), 3, 0, 1000, 256};
    Link parent{seal, kTiming, address_of(2), LUWU_FROM_PARENT, 0, 1000, 256};
    PacketDrops drops{};
    LastSent out;

    std::vector<std::byte> send(Link& from, Time now, const std::function<void(Heartbeat&)>& fill = [](auto&) {}) {
        Heartbeat ours{};
        fill(ours);
        from.send_heartbeat(ours, 9, now, out);
        return out.datagram;
    }
    bool take(Link& to, const std::vector<std::byte>& datagram, Time now) {
        Packet packet;
        REQUIRE(seal.open(datagram, packet, drops));
        return to.take(packet, now, drops);
    }
    [[nodiscard]] std::uint64_t count(PacketDrop reason) const { return drops[static_cast<std::size_t>(reason)]; }
};

}  // namespace

TEST_CASE("a heartbeat says the whole state, and an older one or one that is not whole changes nothing") {
    Ends ends;
    const auto first = ends.send(ends.child, 1000, [](Heartbeat& ours) {
        ours.next[LUWU_STREAM_GRADIENTS] = 7;
        ours.holes_used = 2;
        ours.holes[1] = {5, 6, LUWU_STREAM_PARAMETERS};
    });
    CHECK(ends.out.to == address_of(1));
    CHECK(first.size() == sizeof(Head) + 168 + 2 * 16);
    Head head{};
    std::memcpy(&head, first.data(), sizeof head);
    CHECK(head.sender == 3);
    CHECK(head.epoch == 9);
    const auto second = ends.send(ends.child, 2000);
    CHECK_FALSE(ends.parent.heard());
    REQUIRE(ends.take(ends.parent, first, 50));
    CHECK(ends.parent.heard());
    CHECK(ends.parent.heard_at() == 50);
    CHECK(ends.parent.theirs().next[LUWU_STREAM_GRADIENTS] == 7);
    CHECK(ends.parent.theirs().holes[1].length == 6);
    REQUIRE(ends.take(ends.parent, second, 60));
    CHECK(ends.parent.theirs().next[LUWU_STREAM_GRADIENTS] == 0);
    for (const auto& old : {first, second}) CHECK_FALSE(ends.take(ends.parent, old, 70));
    CHECK(ends.count(PacketDrop::replayed) == 2);
    CHECK(ends.parent.heard_at() == 60);
    // A heartbeat with one hole more or less than it says, and with too many.
    for (const std::uint32_t holes : {1U, 3U, 33U, 0xffffffffU}) {
        std::vector<std::byte> body(first.begin() + sizeof head, first.end());
        std::memcpy(body.data() + offsetof(Heartbeat, holes_used), &holes, sizeof holes);
        head.sequence = 1'000'000 + holes;
        CHECK_FALSE(ends.parent.take({head, body}, 80, ends.drops));
    }
    CHECK_FALSE(ends.parent.take({head, {}}, 80, ends.drops));
    CHECK(ends.count(PacketDrop::form) == 5);
    CHECK(ends.parent.heartbeats_heard() == 2);
    // In a new epoch the link takes a heartbeat with any number.
    ends.parent.reset();
    CHECK_FALSE(ends.parent.heard());
    CHECK(ends.take(ends.parent, first, 95));
}

TEST_CASE("whoever takes a place anew is heard at once whatever its clock reads, and whoever had it no more") {
    Ends ends;
    for (const Time now : {7'000, 8'000}) REQUIRE(ends.take(ends.parent, ends.send(ends.child, now), now));
    Link again(ends.seal, kTiming, address_of(1), 3, 1, 1000, 256);
    CHECK(ends.take(ends.parent, ends.send(again, 10), 9'000));
    CHECK_FALSE(ends.take(ends.parent, ends.send(ends.child, 9'000), 9'100));
    CHECK(ends.count(PacketDrop::replayed) == 1);
    CHECK(ends.take(ends.parent, ends.send(again, 20), 9'200));
    Link third(ends.seal, kTiming, address_of(1), 3, 2, 1000, 256);
    CHECK(ends.take(ends.parent, ends.send(third, 5), 9'300));
}

TEST_CASE("packets that arrive marked are told, by whoever counts them, and shrink the sender's window once") {
    Ends ends;
    CHECK_FALSE(ends.child.counts_marks());
    const auto told = [&ends](Time now, std::uint32_t further_down, bool counts) {
        return ends.send(ends.parent, now, [&](Heartbeat& ours) {
            ours.marked = further_down;
            ours.counts_marks = counts ? 1 : 0;
        });
    };
    const auto fresh = ends.child.window();
    REQUIRE(ends.take(ends.child, told(10, 3, true), 10));  // of an earlier holder of the place
    ends.child.observe(10, 10, 0, 0);
    CHECK(ends.child.window() >= fresh);
    CHECK(ends.child.counts_marks());
    ends.parent.count_mark();
    ends.parent.count_mark();
    REQUIRE(ends.take(ends.child, told(20, 5, true), 20));
    CHECK(ends.child.theirs().marked == 7);
    const auto before = ends.child.window();
    ends.child.observe(20, 10, 0, 0);
    CHECK(ends.child.window() == before / 2);
    // Nothing new; and another child of the switch, whose marks are fewer.
    for (const std::uint32_t further_down : {5U, 1U}) {
        REQUIRE(ends.take(ends.child, told(30 + further_down, further_down, true), 30));
        ends.child.observe(100 * kMillisecond, 10, 0, 0);
        CHECK(ends.child.window() >= before / 2);
    }
    REQUIRE(ends.take(ends.child, told(40, 0, false), 40));
    CHECK_FALSE(ends.child.counts_marks());
    ends.parent.reset();  // an epoch counts anew
    CHECK(ends.parent.theirs().marked == 0);
    const auto anew = told(50, 0, true);
    Heartbeat heartbeat{};
    std::memcpy(&heartbeat, anew.data() + sizeof(Head), offsetof(Heartbeat, holes));
    CHECK(heartbeat.marked == 0);
}

TEST_CASE("an echo from before a link began, by another clock, measures nothing") {
    constexpr Time kDays = 5 * 24 * 3'600'000 * kMillisecond;
    Ends ends;
    const Time sent = 1'000 * kMillisecond;
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent), 77));
    Link again(ends.seal, kTiming, address_of(1), 3, 1, 1000, 256);  // on a host that was started earlier
    (void)ends.send(again, kDays);
    REQUIRE(ends.take(again, ends.send(ends.parent, 77 + kMillisecond), kDays + kMillisecond));
    again.observe(kDays + kMillisecond, 0, 0, 0);
    REQUIRE(ends.take(ends.parent, ends.send(again, kDays + 10 * kMillisecond), 77 + 20 * kMillisecond));
    const auto answer = ends.send(ends.parent, 77 + 20 * kMillisecond);
    REQUIRE(ends.take(again, answer, kDays + 20 * kMillisecond));
    again.observe(kDays + 20 * kMillisecond, 0, 0, 0);
    CHECK(again.resend_age(kDays + 20 * kMillisecond) == 15 * kMillisecond);  // one and a half times 10
}

TEST_CASE("an echo measures the round trip without what the other end held it, once") {
    Ends ends;
    const Time sent = 1'000 * kMillisecond;
    const Time far = 77;  // the other clock is another
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent), far));
    const auto answer = ends.send(ends.parent, far + 30 * kMillisecond);
    REQUIRE(ends.take(ends.child, answer, sent + 40 * kMillisecond));
    CHECK(ends.child.theirs().echo == sent);
    CHECK(ends.child.theirs().held == 30 * kMillisecond);
    CHECK(ends.child.resend_age(sent) == kTiming.heartbeat);
    ends.child.observe(sent + 40 * kMillisecond, 0, 0, 0);
    CHECK(ends.child.resend_age(sent) == 15 * kMillisecond);  // one and a half times 10
    // The same echo again tells nothing of the way there; nor does one from the future.
    REQUIRE(ends.take(ends.child, ends.send(ends.parent, far + 31 * kMillisecond), sent + 90 * kMillisecond));
    ends.child.observe(sent + 90 * kMillisecond, 0, 0, 0);
    CHECK(ends.child.resend_age(sent) == 15 * kMillisecond);
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent + 500 * kMillisecond), far + 60 * kMillisecond));
    REQUIRE(ends.take(ends.child, ends.send(ends.parent, far + 61 * kMillisecond), sent + 100 * kMillisecond));
    ends.child.observe(sent + 100 * kMillisecond, 0, 0, 0);
    CHECK(ends.child.resend_age(sent + 100 * kMillisecond) == 15 * kMillisecond);
}

TEST_CASE("what the other end misses is lost only if it has heard a heartbeat that was sent later") {
    Ends ends;
    const Time sent = 1'000 * kMillisecond;
    CHECK(ends.child.resend_age(sent) == sent);  // nothing was heard of yet
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent), 77));
    const auto answer = ends.send(ends.parent, 77);
    (void)ends.send(ends.child, sent + 2 * kMillisecond);  // on its way
    REQUIRE(ends.take(ends.child, answer, sent + kMillisecond / 4));
    for (const Time later : {1, 2, 5}) {
        CHECK(ends.child.resend_age(sent + later * kMillisecond) == later * kMillisecond);
    }
}

TEST_CASE("what has arrived behind the only hole is not under way, and what was sent before it is lost") {
    Ends ends;
    const Time sent = 1'000 * kMillisecond;
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent), 77));
    const auto tell = [](Heartbeat& ours) {
        ours.heard[LUWU_STREAM_GRADIENTS] = 10;
        ours.holes_used = 1;
        ours.holes[0] = {10, 2, LUWU_STREAM_GRADIENTS};
        fabric::close_holes(LUWU_STREAM_GRADIENTS, 30, ours);
    };
    const Time now = sent + 9 * kMillisecond;
    REQUIRE(ends.take(ends.child, ends.send(ends.parent, 77 + kMillisecond, tell), now));
    CHECK(ends.child.arrived(LUWU_STREAM_GRADIENTS) == 10 + 18);
    CHECK(ends.child.farthest(LUWU_STREAM_GRADIENTS) == 30);
    CHECK(ends.child.farthest(LUWU_STREAM_REQUESTS) == 0);
    CHECK(ends.child.resend_age(now) == 9 * kMillisecond);  // since the heartbeat that was heard
    CHECK(ends.child.resend_age(now, now - 3 * kMillisecond) == 3 * kMillisecond + 1);
}

TEST_CASE("holes are closed where there is room, once, and where something has arrived behind them") {
    Heartbeat ours{};
    fabric::close_holes(LUWU_STREAM_GRADIENTS, 30, ours);
    CHECK(ours.holes_used == 0);  // none
    ours.holes[ours.holes_used++] = {10, 2, LUWU_STREAM_GRADIENTS};
    fabric::close_holes(LUWU_STREAM_GRADIENTS, 12, ours);
    fabric::close_holes(LUWU_STREAM_REQUESTS, 30, ours);
    CHECK(ours.holes_used == 1);
    fabric::close_holes(LUWU_STREAM_GRADIENTS, 30, ours);
    fabric::close_holes(LUWU_STREAM_GRADIENTS, 30, ours);
    CHECK(ours.holes_used == 2);
    CHECK(ours.holes[1].first == 30);
    CHECK(ours.holes[1].length == 0);
    ours.holes_used = LUWU_MOST_HOLES;
    ours.holes[LUWU_MOST_HOLES - 1] = {40, 2, LUWU_STREAM_GRADIENTS};
    fabric::close_holes(LUWU_STREAM_GRADIENTS, 50, ours);
    CHECK(ours.holes_used == LUWU_MOST_HOLES);
}

TEST_CASE("heartbeats that do not arrive tell of a queue on the way there") {
    Ends ends;
    const Time far = 77;  // the other clock reads this when ours reads `began`
    const Time began = 1'000 * kMillisecond;
    const auto window_after = [&](bool they_hear) {
        Ends pair;
        for (Time beat = 0; beat < 200; ++beat) {
            const Time ours = began + beat * kMillisecond;
            pair.child.changed();  // packets flow
            const auto sent = pair.send(pair.child, ours);
            if (they_hear || beat < 20) REQUIRE(pair.take(pair.parent, sent, far + beat * kMillisecond));
            const auto answer = pair.send(pair.parent, far + beat * kMillisecond);
            REQUIRE(pair.take(pair.child, answer, ours));
            pair.child.observe(ours, 1000, 990, 0);
        }
        return pair.child.window();
    };
    CHECK(window_after(true) == 1000);
    CHECK(window_after(false) < 200);
}

TEST_CASE("one lost heartbeat of a link that does nothing tells of no queue") {
    Ends ends;
    Time now = 1'000 * kMillisecond;
    for (int beat = 0; beat < 100; ++beat) {
        const auto sent = ends.send(ends.child, now);
        if (beat != 60) REQUIRE(ends.take(ends.parent, sent, now));
        REQUIRE(ends.take(ends.child, ends.send(ends.parent, now + 30 * kMillisecond), now + 30 * kMillisecond));
        ends.child.observe(now + 30 * kMillisecond, 0, 0, 0);
        CHECK(ends.child.wait() == 0);
        now = std::max(now + 31 * kMillisecond, ends.child.heartbeat_at());
    }
    CHECK(ends.child.window() == 4 * (22'500 / 256));  // as at the beginning
}

TEST_CASE("heartbeats come at a steady rate while anything changes, then less and less often") {
    Ends ends;
    CHECK(ends.child.heartbeat_at() == 0);
    const Time began = 5'000;
    Time now = began;
    ends.send(ends.child, now);
    for (Time beat = 1; beat <= 100; ++beat) {  // however often something changes, and though each is a little late
        CHECK(ends.child.heartbeat_at() == began + beat * kTiming.heartbeat);
        now = ends.child.heartbeat_at() + 1'000 * (beat % 7);
        if (beat % 5 == 0) ends.child.changed();
        ends.send(ends.child, now);
    }
    Time before = kTiming.heartbeat;
    while (before < kTiming.idle_heartbeat) {
        now = ends.child.heartbeat_at();
        ends.send(ends.child, now);
        const Time pause = ends.child.heartbeat_at() - now;
        CHECK((pause == before || pause == std::min(2 * before, kTiming.idle_heartbeat)));
        before = pause;
    }
    CHECK(ends.child.heartbeats_sent() < 120);
    ends.child.changed();
    CHECK(ends.child.heartbeat_at() == now + kTiming.heartbeat);
    now += 20 * kMillisecond;  // much too late: the rate is not made up for
    ends.send(ends.child, now);
    CHECK(ends.child.heartbeat_at() == now + kTiming.heartbeat);
}

TEST_CASE("wiring that cannot work is refused by what is wrong with it") {
    Wiring good;
    good.payload_bytes = 1408;
    good.window = {1, 1, 1, 1};
    CHECK_NOTHROW(fabric::check(good));
    const auto refusal = [&good](const std::function<void(Wiring&)>& change) {
        Wiring wiring = good;
        change(wiring);
        try {
            fabric::check(wiring);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::invalid);
            return std::string(error.what());
        }
        return std::string("nothing");
    };
    for (const std::uint32_t bytes : {0U, 100U, 1407U, LUWU_MOST_PAYLOAD + 128U}) {
        CHECK(refusal([&](Wiring& wiring) { wiring.payload_bytes = bytes; }).find("packets of ") == 0);
    }
    for (const std::uint32_t bytes : {128U, 0U + LUWU_MOST_PAYLOAD}) {
        CHECK(refusal([&](Wiring& wiring) { wiring.payload_bytes = bytes; }) == "nothing");
    }
    CHECK(refusal([](Wiring& wiring) { wiring.workers = 0; }).find("a job of 0 workers") == 0);
    CHECK(refusal([](Wiring& wiring) { wiring.workers = 8193; }).find("a job of 8193 workers") == 0);
    CHECK(refusal([](Wiring& wiring) { wiring.workers = 8192; }) == "nothing");
    CHECK(refusal([](Wiring& wiring) { wiring.form = LUWU_BYTES; }).find("gradients of form 0") == 0);
    CHECK(refusal([](Wiring& wiring) { wiring.incarnation = 1U << 24; }).find("incarnation 16777216") == 0);
    CHECK(refusal([](Wiring& wiring) { wiring.incarnation = (1U << 24) - 1; }) == "nothing");
    for (std::size_t stream = 0; stream < LUWU_STREAMS; ++stream) {
        CHECK(refusal([&](Wiring& wiring) { wiring.window[stream] = 0; }).find("a stream's window") == 0);
        CHECK(refusal([&](Wiring& wiring) { wiring.window[stream] = ~0U; }).find("a stream's window") == 0);
        CHECK(refusal([&](Wiring& wiring) {
                  wiring.payload_bytes = LUWU_MOST_PAYLOAD;
                  wiring.window[stream] = fabric::kMostWindow;
              }).find("a stream's window") == 0);
    }
}

}  // namespace luwu::test
