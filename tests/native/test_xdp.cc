// The XDP switch, packet by packet: what comes in, what goes out, and what its slots hold before and after.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "fabric/core/clock.h"
#include "kernels/fixed_point.h"
#include "switch/kernel_slots.h"
#include "xdp_rig.h"

namespace luwu::test {

namespace {

Bytes sum_of(const std::vector<Bytes>& payloads, luwu_form form) {
    const auto fixed = form == LUWU_INT16 ? kernels::FixedForm::int16 : kernels::FixedForm::int32;
    Bytes sum = payloads[0];
    for (std::size_t i = 1; i < payloads.size(); ++i) {
        kernels::add_mantissas(sum.data(), payloads[i].data(), fixed, sum.size() / kernels::size_of(fixed));
    }
    return sum;
}

bool is_sum(const XdpRig& rig, const Bytes& expected) {
    fabric::Packet packet;
    return rig.open(packet) && std::ranges::equal(packet.payload, expected);
}

std::uint64_t count(const XdpRig& rig, luwu_xdp_count what) { return rig.program.stats()[what]; }

// Frames of three children, the same payload length and numbers as a message's end has.
struct Three {
    Three(const XdpRig& rig, std::uint64_t sequence, std::size_t bytes, luwu_form form, std::uint64_t seed = 1) {
        std::mt19937_64 random(seed);
        for (std::uint32_t child = 0; child < 3; ++child) {
            payloads.push_back(mantissas(random, bytes, form, 3));
            packets.push_back(rig.gradient(child, sequence, payloads.back(), form));
        }
        sum = sum_of(payloads, form);
    }
    std::vector<Bytes> payloads;
    std::vector<Sent> packets;
    Bytes sum;
};

}  // namespace

TEST_CASE("XDP: gradients of all children become their sum, of any length and form, in any order") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    std::uint64_t sequence = 0;
    for (const luwu_form form : {LUWU_INT32, LUWU_INT16}) {
        for (const std::size_t bytes : {1024UL, 1020UL, 1016UL, 512UL, 132UL, 64UL, 8UL, 4UL, 0UL}) {
            CAPTURE(form);
            CAPTURE(bytes);
            const Three three(rig, sequence, bytes + (form == LUWU_INT16 && bytes < 1024 ? 2 : 0), form, sequence);
            const std::array order{sequence % 3, (sequence + 2) % 3, (sequence + 1) % 3};
            CHECK(rig.send(static_cast<std::uint32_t>(order[0]), three.packets[order[0]]) == Action::drop);
            CHECK(rig.send(static_cast<std::uint32_t>(order[1]), three.packets[order[1]]) == Action::drop);
            CHECK(rig.send(static_cast<std::uint32_t>(order[2]), three.packets[order[2]]) == Action::redirect);
            CHECK(is_sum(rig, three.sum));
            rig.program.state().base = ++sequence;
        }
    }
    CHECK(count(rig, LUWU_XDP_SUMS_SENT) == sequence);
    CHECK(count(rig, LUWU_XDP_PACKETS_IN) == 3 * sequence);
    CHECK(rig.program.state().sent_end == sequence);
}

TEST_CASE("XDP: the sum goes to the parent, with everybody's count") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    const Three three(rig, 7, 64, LUWU_INT32);
    for (std::uint32_t child = 0; child < 3; ++child) rig.send(child, three.packets[child]);
    fabric::Packet packet;
    REQUIRE(rig.open(packet));
    CHECK(packet.head.sender == kChild);
    CHECK(packet.head.count == 1 + 2 + 3);
    CHECK(packet.head.flags == 0);
    CHECK(packet.head.sequence == 7);
    const auto as_bytes = [](std::initializer_list<int> values) {
        Bytes bytes;
        for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
        return bytes;
    };
    const auto part = [&](std::size_t from, std::size_t length) {
        return Bytes(&rig.last[from], &rig.last[from + length]);
    };
    CHECK(part(0, 14) == as_bytes({2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}));
    CHECK(part(26, 8) == as_bytes({10, 0, 0, 1, 10, 0, 0, 2}));
    CHECK(part(34, 4) == as_bytes({kOwnPort >> 8, kOwnPort & 0xff, 7070 >> 8, 7070 & 0xff}));
    CHECK(part(40, 2) == as_bytes({0, 0}));
    std::uint32_t checksum = 0;
    for (std::size_t i = 14; i < 34; i += 2) {
        checksum += static_cast<std::uint32_t>(rig.last[i]) << 8U | static_cast<std::uint32_t>(rig.last[i + 1]);
    }
    CHECK((checksum & 0xffffU) + (checksum >> 16U) == 0xffff);
}

TEST_CASE("XDP: a packet that is in already changes nothing, and brings the sum once more when that was sent") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    const Three three(rig, 0, 1024, LUWU_INT32);
    rig.send(0, three.packets[0]);
    CHECK(rig.send(0, three.packets[0]) == Action::drop);
    CHECK(count(rig, LUWU_XDP_DUPLICATES) == 1);
    rig.send(1, three.packets[1]);
    rig.send(2, three.packets[2]);
    CHECK(is_sum(rig, three.sum));
    CHECK(rig.send(1, three.packets[1]) == Action::redirect);
    CHECK(is_sum(rig, three.sum));
    CHECK(count(rig, LUWU_XDP_SUMS_AGAIN) == 1);
    CHECK(count(rig, LUWU_XDP_SUMS_SENT) == 1);
    // A damaged one does not.
    Bytes damaged = rig.frame(1, three.packets[1]);
    damaged.back() ^= std::byte{1};
    CHECK(rig.program.run(damaged) == Action::pass);
}

TEST_CASE("XDP: a sum that the parent misses is sent again by the controller, if it was not sent just now") {
    if (!can_run_xdp()) return;
    constexpr fabric::Time kAge = 5 * fabric::kMillisecond;
    XdpRig rig(1);
    const auto slots = switching::make_kernel_slots(rig.program);
    const fabric::Time before = fabric::monotonic_ns();
    CHECK_FALSE(slots->take_hole(0, before, 0));  // it is not there
    rig.send(0, rig.gradient(0, 0, Bytes(1024), LUWU_INT32));
    const fabric::Time after = fabric::monotonic_ns();
    CHECK_FALSE(slots->take_hole(0, before - fabric::kMillisecond, 0));  // sent since then
    CHECK_FALSE(slots->take_hole(0, before + kAge - fabric::kMillisecond, kAge));
    CHECK(slots->take_hole(0, after + 2 * kAge, kAge));
    CHECK_FALSE(slots->take_hole(0, after + 2 * kAge, kAge));
    CHECK_FALSE(slots->take_hole(0, after + 4 * kAge, after + 4 * kAge));  // nothing was heard of yet (Link)
}

TEST_CASE("XDP: a damaged packet goes to the controller as it is, and leaves the sum alone") {
    if (!can_run_xdp()) return;
    for (const std::size_t bytes : {1024UL, 100UL}) {
        for (const std::uint32_t first : {0U, 1U}) {
            CAPTURE(bytes);
            CAPTURE(first);
            XdpRig rig(3);
            const Three three(rig, 0, bytes, LUWU_INT32);
            for (std::uint32_t child = 0; child < first; ++child) rig.send(child, three.packets[child]);
            const Bytes good = rig.frame(first, three.packets[first]);
            for (std::size_t at = kFrameHead; at < good.size(); ++at) {
                Bytes bad = good;
                bad[at] ^= std::byte{0x10};
                const Bytes before = bad;
                const Action action = rig.program.run(bad);
                const bool sender_or_count = at >= kFrameHead + 16 && at < kFrameHead + 20;
                if (sender_or_count && action != Action::pass) continue;
                CHECK(action == Action::pass);
                CHECK(bad == before);
                if (action != Action::pass || bad != before) return;
            }
            XdpRig other(3);
            for (std::uint32_t child = first; child < 3; ++child) rig.send(child, three.packets[child]);
            CHECK(is_sum(rig, three.sum));
        }
    }
}

TEST_CASE("XDP: children that do not agree make a conflict, which the controller seals and sends") {
    if (!can_run_xdp()) return;
    using Change = std::function<void(Sent&)>;
    const std::vector<Change> changes{[](Sent& sent) { sent.head.block = 9; }, [](Sent& sent) { ++sent.head.index; },
                                      [](Sent& sent) { sent.head.form = LUWU_INT16; },
                                      [](Sent& sent) { sent.payload.resize(60); }};
    for (std::size_t number = 0; number < changes.size(); ++number) {
        for (const std::uint32_t who : {1U, 2U}) {
            CAPTURE(number);
            CAPTURE(who);
            XdpRig rig(3);
            Three three(rig, 0, 64, LUWU_INT32);
            changes[number](three.packets[who]);
            rig.send(0, three.packets[0]);
            CHECK(rig.send(1, three.packets[1]) == Action::drop);
            CHECK(rig.send(2, three.packets[2]) == Action::pass);
            fabric::Packet note;
            REQUIRE(rig.open(note));
            CHECK(note.head.sender == LUWU_TO_CONTROLLER);
            const luwu_slot& slot = rig.program.slot(0);
            CHECK(slot.head.flags == LUWU_CONFLICT);
            CHECK(slot.head.count == 6);
            const Bytes expected = sum_of({three.payloads[0], three.payloads[3 - who]}, LUWU_INT32);
            CHECK(sum_in(rig.program, 0) == expected);
        }
    }
}

TEST_CASE("XDP: jobs that the program cannot serve are named") {
    const auto place = xdp_place(64);
    CHECK(switching::xdp_unfit(xdp_wiring(), place).empty());
    CHECK(switching::xdp_unfit(xdp_wiring(), xdp_place(65)) == "more than 64 children");
    CHECK(switching::xdp_unfit(xdp_wiring(1024, LUWU_FLOAT32), place).find("float32") != std::string::npos);
    auto over_ipv6 = place;
    over_ipv6.children[63] = fabric::parse_address("fd00::1", 1);
    CHECK(switching::xdp_unfit(xdp_wiring(), over_ipv6) == "a neighbour over IPv6");
    auto late = place;
    late.interfaces_end = 1'000'001;
    CHECK(switching::xdp_unfit(xdp_wiring(), late) == "an interface whose number is above a million");
}

TEST_CASE("XDP: while the way to the parent is not known, sums are left to the controller") {
    if (!can_run_xdp()) return;
    XdpRig rig(1);
    rig.program.path(LUWU_XDP_PARENT).interface_number = 0;
    std::mt19937_64 random(3);
    const Bytes values = mantissas(random, 1024, LUWU_INT32, 1);
    CHECK(rig.send(0, rig.gradient(0, 2, values, LUWU_INT32)) == Action::pass);
    fabric::Packet note;
    REQUIRE(rig.open(note));
    CHECK(note.head.sender == LUWU_TO_CONTROLLER);
    CHECK(sum_in(rig.program, 2) == values);
}

TEST_CASE("XDP: what is out of place goes to the controller as it is, and slots stay as they are") {
    if (!can_run_xdp()) return;
    struct Case {
        const char* what;
        std::function<void(XdpRig&)> before;
        std::function<void(Sent&)> change;
    };
    const auto nothing = [](XdpRig&) {};
    const auto same = [](Sent&) {};
    const std::vector<Case> cases{
        {"the parent was not heard", [](XdpRig& rig) { rig.program.state().ready = 0; }, same},
        {"another epoch", [](XdpRig& rig) { ++rig.program.state().epoch; }, same},
        {"below the window", [](XdpRig& rig) { rig.program.state().base = 5; }, same},
        {"above the window", nothing, [](Sent& sent) { sent.head.sequence = 24; }},
        {"no such child", nothing, [](Sent& sent) { sent.head.sender = 3; }},
        {"another child's number", nothing, [](Sent& sent) { sent.head.sender = 1; }},
        {"the parent's number", nothing, [](Sent& sent) { sent.head.sender = LUWU_FROM_PARENT; }},
        {"a note from outside", nothing, [](Sent& sent) { sent.head.sender = LUWU_TO_CONTROLLER; }},
        {"a request", nothing, [](Sent& sent) { sent.head.kind = LUWU_REQUEST; }},
        {"exponents", nothing, [](Sent& sent) { sent.head.kind = LUWU_EXPONENTS; }},
        {"parameters from a child", nothing, [](Sent& sent) { sent.head.kind = LUWU_PARAMETERS; }},
        {"longer than the job's packets", nothing, [](Sent& sent) { sent.payload.resize(1152); }},
    };
    for (const Case& one : cases) {
        CAPTURE(one.what);
        XdpRig rig(3);
        Sent sent = rig.gradient(0, 4, Bytes(1024, std::byte{7}), LUWU_INT32);
        one.before(rig);
        one.change(sent);
        const Bytes frame = rig.frame(0, sent);
        CHECK(rig.send(0, sent) == Action::pass);
        CHECK(rig.last == frame);
        for (std::uint64_t slot = 0; slot < 32; ++slot) CHECK(rig.program.slot(slot).arrived == 0);
    }
}

TEST_CASE("XDP: other traffic of the machine passes, byte for byte") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    const Bytes ours = rig.frame(0, rig.gradient(0, 0, Bytes(64), LUWU_INT32));
    const auto with = [&](std::size_t at, int value) {
        Bytes frame = ours;
        frame[at] = static_cast<std::byte>(value);
        return frame;
    };
    const std::vector<std::pair<const char*, Bytes>> frames{
        {"IPv6", with(12, 0x86)},
        {"ARP", with(13, 6)},
        {"IP options", with(14, 0x46)},
        {"a fragment", with(20, 0x20)},
        {"a later fragment", with(21, 1)},
        {"TCP", with(23, 6)},
        {"to another address", with(33, 9)},
        {"to another port", with(37, 1)},
        {"shorter than a packet's head", Bytes(ours.begin(), ours.begin() + kFrameHead + 47)},
        {"no IP", Bytes(ours.begin(), ours.begin() + 20)},
    };
    for (const auto& each : frames) {
        CAPTURE(each.first);
        Bytes changed = each.second;
        CHECK(rig.program.run(changed) == Action::pass);
        CHECK(changed == each.second);
    }
    CHECK(std::ranges::all_of(rig.program.stats(), [](std::uint64_t value) { return value == 0; }));
}

TEST_CASE("XDP: a slot is used again once the parent has its sum, and for a new epoch") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    for (const std::uint64_t sequence : {3UL, 3UL + 32, 3UL + 64}) {
        rig.program.state().base = sequence;
        const Three three(rig, sequence, 1024, LUWU_INT32, sequence);
        for (std::uint32_t child = 0; child < 3; ++child) rig.send(child, three.packets[child]);
        CHECK(is_sum(rig, three.sum));
    }
    rig.program.state().base = 0;
    rig.wiring.epoch = rig.program.state().epoch = 4;
    const Three three(rig, 3, 1024, LUWU_INT32, 9);
    for (std::uint32_t child = 0; child < 3; ++child) rig.send(child, three.packets[child]);
    CHECK(is_sum(rig, three.sum));
    // A packet that was on its way when the epoch changed.
    rig.wiring.epoch = rig.program.state().epoch = 3;
    CHECK(rig.send(0, rig.gradient(0, 3, three.payloads[0], LUWU_INT32)) == Action::drop);
    CHECK(rig.program.slot(3).head.epoch == 4);
}

TEST_CASE("XDP: a heartbeat shows the way back, if it is whole and newer than the last") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    const auto heartbeat = [&](std::uint64_t number) {
        Sent sent{{}, Bytes(176, std::byte{0x9c})};
        sent.head.kind = LUWU_HEARTBEAT;
        sent.head.epoch = 9;
        sent.head.sender = 1;
        sent.head.sequence = number;
        return sent;
    };
    Bytes damaged = rig.frame(1, heartbeat(5));
    damaged.back() ^= std::byte{1};
    CHECK(rig.program.run(damaged) == Action::pass);
    CHECK(rig.program.path(1).interface_number == 0);
    CHECK(rig.send(1, heartbeat(5)) == Action::pass);
    CHECK(rig.program.path(1).interface_number != 0);
    CHECK(rig.program.path(1).heard == 5);
    Bytes moved = rig.frame(1, heartbeat(5));
    moved[6] = std::byte{0x42};
    CHECK(rig.program.run(moved) == Action::pass);
    CHECK(rig.program.path(1).theirs[0] == 0);
    moved = rig.frame(1, heartbeat(6));
    moved[6] = std::byte{0x42};
    CHECK(rig.program.run(moved) == Action::pass);
    CHECK(rig.program.path(1).theirs[0] == 0x42);
}

TEST_CASE("XDP: parameters are copied once every child's way is known, and pass until then") {
    if (!can_run_xdp()) return;
    XdpRig rig(3);
    Sent sent{{}, Bytes(1000, std::byte{3})};
    sent.head.kind = LUWU_PARAMETERS;
    sent.head.epoch = rig.wiring.epoch;
    sent.head.sender = LUWU_FROM_PARENT;
    CHECK(rig.send(LUWU_XDP_PARENT, sent) == Action::pass);
    for (std::uint32_t child = 0; child < 3; ++child) rig.program.path(child).interface_number = 1;
    rig.program.follow_paths();
    for (const int kind : {LUWU_PARAMETERS, LUWU_AGREED}) {
        sent.head.kind = static_cast<std::uint8_t>(kind);
        CHECK(rig.send(LUWU_XDP_PARENT, sent) == Action::redirect);
        fabric::Packet packet;
        REQUIRE(rig.open(packet));
        CHECK(std::ranges::equal(packet.payload, sent.payload));
    }
    CHECK(count(rig, LUWU_XDP_PACKETS_OUT) == 6);
    Bytes damaged = rig.frame(LUWU_XDP_PARENT, sent);
    damaged.back() ^= std::byte{1};
    CHECK(rig.program.run(damaged) == Action::pass);
    CHECK(rig.send(0, sent) == Action::pass);  // from a child's address
}

TEST_CASE("XDP: packets of one slot that arrive on several processors at once are all in its sum") {
    if (!can_run_xdp()) return;
    XdpRig rig(4);
    constexpr std::uint64_t kMany = 2000;
    std::vector<std::vector<Bytes>> frames(4);
    std::mt19937_64 random(5);
    std::vector<Bytes> payloads;
    for (std::uint32_t child = 0; child < 4; ++child) payloads.push_back(mantissas(random, 1024, LUWU_INT32, 4));
    const Bytes sum = sum_of(payloads, LUWU_INT32);
    for (std::uint64_t first = 0; first < kMany; first += 20) {
        rig.program.state().base = first;
        std::atomic<int> sums{0};
        std::vector<std::thread> threads;
        for (std::uint32_t child = 0; child < 4; ++child) {
            threads.emplace_back([&, child] {
                for (std::uint64_t sequence = first; sequence < first + 20; ++sequence) {
                    Bytes frame = rig.frame(child, rig.gradient(child, sequence, payloads[child], LUWU_INT32));
                    Action action = rig.program.run(frame);
                    // The program gives up where the machine under the lock's holder stops: the controller tries again.
                    for (int again = 0; again < 100 && action == Action::pass; ++again) {
                        action = rig.program.run(frame);
                    }
                    if (action == Action::redirect) ++sums;
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK(sums == 20);
        for (std::uint64_t sequence = first; sequence < first + 20; ++sequence) {
            if (sum_in(rig.program, sequence) != sum) FAIL_CHECK("slot " << sequence);
        }
    }
}

}  // namespace luwu::test
