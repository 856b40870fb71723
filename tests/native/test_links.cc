// What a link's end makes of heartbeats, how much it lets under way, and what wiring is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "fabric/congestion.h"
#include "fabric/link.h"
#include "simulated_network.h"
#include "store/error.h"

namespace luwu::test {

namespace {

using fabric::Congestion;
using fabric::Head;
using fabric::Heartbeat;
using fabric::Link;
using fabric::NetworkTiming;
using fabric::Packet;
using fabric::PacketDrop;
using fabric::PacketDrops;
using fabric::Seal;
using fabric::Wiring;

constexpr Time kMillisecond = 1'000'000;
constexpr NetworkTiming kTiming{kMillisecond / 2, 50 * kMillisecond, 50 * kMillisecond, 1'000 * kMillisecond,
                                5 * kMillisecond};

class LastSent final : public fabric::Outbox {
  public:
    void send(const Address& address, std::span<const std::byte> head, std::span<const std::byte> body) override {
        to = address;
        datagram.assign(head.begin(), head.end());
        datagram.insert(datagram.end(), body.begin(), body.end());
    }
    std::byte* room(std::size_t bytes) override {
        room_.resize(bytes);
        return room_.data();
    }
    Address to;
    std::vector<std::byte> datagram;

  private:
    std::vector<std::byte> room_;
};

// Two ends, each with a clock of its own.
struct Ends {
    Seal seal{1, 2, 256};
    Link child{seal, kTiming, address_of(1), 3, 1000};
    Link parent{seal, kTiming, address_of(2), LUWU_FROM_PARENT, 1000};
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

// Feeds heartbeats for some periods, each with the same delay; every `late`-th is much later than that.
Time feed(Congestion& congestion, Time now, int periods, Time delay, std::uint64_t lost_percent = 0, int late = 0) {
    for (int heartbeat = 1; heartbeat <= 20 * periods; ++heartbeat) {
        now += kMillisecond / 2;
        const bool is_late = late != 0 && heartbeat % late == 0;
        congestion.observe(now, is_late ? 30 * kMillisecond : delay, 100 - lost_percent, lost_percent);
    }
    return now;
}

}  // namespace

TEST_CASE("a heartbeat says the whole state, and an older one or one that is not whole changes nothing") {
    Ends ends;
    const auto first = ends.send(ends.child, 1000, [](Heartbeat& ours) {
        ours.next[LUWU_STREAM_GRADIENTS] = 7;
        ours.holes_used = 2;
        ours.holes[1] = {5, 6, LUWU_STREAM_PARAMETERS};
    });
    CHECK(ends.out.to == address_of(1));
    CHECK(first.size() == sizeof(Head) + 160 + 2 * 16);
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
    // One hole more or less than it says, and too many.
    for (const std::uint32_t holes : {1U, 3U, 33U, 0xffffffffU}) {
        std::vector<std::byte> body(first.begin() + sizeof head, first.end());
        std::memcpy(body.data() + offsetof(Heartbeat, holes_used), &holes, sizeof holes);
        head.sequence = 1'000'000 + holes;
        CHECK_FALSE(ends.parent.take({head, body}, 80, ends.drops));
    }
    CHECK_FALSE(ends.parent.take({head, {}}, 80, ends.drops));
    CHECK(ends.count(PacketDrop::form) == 5);
    CHECK(ends.parent.heartbeats_heard() == 2);
    // One that was started again counts on by its clock; a new epoch is heard whatever its number.
    Link again(ends.seal, kTiming, address_of(1), 3, 1000);
    CHECK(ends.take(ends.parent, ends.send(again, 3000), 90));
    Link behind(ends.seal, kTiming, address_of(1), 3, 1000);
    const auto early = ends.send(behind, 10);
    CHECK_FALSE(ends.take(ends.parent, early, 95));
    ends.parent.reset();
    CHECK_FALSE(ends.parent.heard());
    CHECK(ends.take(ends.parent, early, 95));
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
    CHECK(ends.child.resend_age() == kTiming.heartbeat);
    ends.child.observe(sent + 40 * kMillisecond, 0, 0);
    CHECK(ends.child.resend_age() == 15 * kMillisecond);  // one and a half of 10
    // The same echo again tells nothing of the way there; nor does one from the future.
    REQUIRE(ends.take(ends.child, ends.send(ends.parent, far + 31 * kMillisecond), sent + 90 * kMillisecond));
    ends.child.observe(sent + 90 * kMillisecond, 0, 0);
    CHECK(ends.child.resend_age() == 15 * kMillisecond);
    REQUIRE(ends.take(ends.parent, ends.send(ends.child, sent + 500 * kMillisecond), far + 60 * kMillisecond));
    REQUIRE(ends.take(ends.child, ends.send(ends.parent, far + 61 * kMillisecond), sent + 100 * kMillisecond));
    ends.child.observe(sent + 100 * kMillisecond, 0, 0);
    CHECK(ends.child.resend_age() == 15 * kMillisecond);
}

TEST_CASE("a heartbeat is due at once, then soon if something changed, else after a while") {
    Ends ends;
    CHECK(ends.child.heartbeat_at() == 0);
    ends.send(ends.child, 5'000);
    CHECK(ends.child.heartbeat_at() == 5'000 + kTiming.idle_heartbeat);
    ends.child.changed();
    CHECK(ends.child.heartbeat_at() == 5'000 + kTiming.heartbeat);
    ends.send(ends.child, 6'000);
    CHECK(ends.child.heartbeat_at() == 6'000 + kTiming.idle_heartbeat);
    ends.child.reset();
    CHECK(ends.child.heartbeat_at() == 6'000 + kTiming.heartbeat);
    CHECK(ends.child.heartbeats_sent() == 2);
}

TEST_CASE("what may be under way grows on an empty link, shrinks behind a queue, and comes back") {
    Congestion congestion(2000, 5 * kMillisecond);
    const std::uint64_t at_first = congestion.window();
    Time now = feed(congestion, kMillisecond, 1, kMillisecond);
    CHECK(congestion.window() > at_first);
    now = feed(congestion, now, 40, kMillisecond);
    CHECK(congestion.window() == 2000);
    std::uint64_t before = congestion.window();
    for (int i = 0; i < 5; ++i) {
        now = feed(congestion, now, 10, 20 * kMillisecond);  // a queue of 14 ms too much, for two round trips
        CHECK(congestion.window() < before);
        before = congestion.window();
    }
    now = feed(congestion, now, 100, 20 * kMillisecond);
    CHECK(congestion.window() >= 16);
    CHECK(congestion.window() < 100);
    const std::uint64_t least = congestion.window();
    now = feed(congestion, now, 4, 5 * kMillisecond);  // a delay that is allowed
    CHECK(congestion.window() > least);
    now = feed(congestion, now, 200, 5 * kMillisecond);
    CHECK(congestion.window() == 2000);
}

TEST_CASE("single late heartbeats do not slow a sender down") {
    Congestion congestion(2000, 5 * kMillisecond);
    Time now = kMillisecond;
    std::uint64_t before = congestion.window();
    for (int i = 0; i < 60; ++i) {
        now = feed(congestion, now, 1, kMillisecond, 0, 4);
        CHECK(congestion.window() >= before);
        before = congestion.window();
    }
    CHECK(congestion.window() == 2000);
}

TEST_CASE("a little loss does not slow a sender down, and much does") {
    for (const std::uint64_t percent : {5U, 15U, 30U, 60U}) {
        CAPTURE(percent);
        Congestion congestion(2000, 5 * kMillisecond);
        const Time now = feed(congestion, kMillisecond, 60, kMillisecond);
        REQUIRE(congestion.window() == 2000);
        feed(congestion, now, 10, kMillisecond, percent);
        CHECK((congestion.window() == 2000) == (percent < 20));
        CHECK(congestion.window() >= 16);
    }
    Congestion few(2000, 5 * kMillisecond);  // half of a handful is lost
    for (Time now = kMillisecond; now < 500 * kMillisecond; now += 10 * kMillisecond)
        few.observe(now, kMillisecond, 4, 4);
    CHECK(few.window() > 64);
}

TEST_CASE("a path that became longer for good is believed after a while") {
    Congestion congestion(2000, 5 * kMillisecond);
    Time now = feed(congestion, kMillisecond, 60, kMillisecond);
    now = feed(congestion, now, 100, 30 * kMillisecond);
    CHECK(congestion.window() < 100);
    now += 11'000 * kMillisecond;
    feed(congestion, now, 400, 30 * kMillisecond);
    CHECK(congestion.window() == 2000);
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
    for (std::size_t stream = 0; stream < LUWU_STREAMS; ++stream) {
        CHECK(refusal([&](Wiring& wiring) { wiring.window[stream] = 0; }).find("a stream's window") == 0);
    }
}

}  // namespace luwu::test
