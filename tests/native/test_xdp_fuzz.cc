// The program in the kernel under random packets: `make fuzz` asks for millions of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "fuzz.h"
#include "xdp_rig.h"

namespace luwu::test {

namespace {

constexpr std::uint32_t kChildren = 3;
constexpr std::uint64_t kPartial = 8;    // the first slots hold one child's packet
constexpr std::uint64_t kComplete = 16;  // those behind hold a sum that was sent, up to here
constexpr std::uint64_t kOtherKey = 4711;

template <class Value>
void append(Bytes& to, const Value* from, std::size_t count) {
    const auto bytes = std::as_bytes(std::span(from, count));
    to.insert(to.end(), bytes.begin(), bytes.end());
}

// All of a job that packets could change, but the counters; of slots and sums those below `end`.
Bytes maps_of(XdpProgram& program, std::uint64_t end) {
    Bytes all;
    append(all, &program.state(), 1);
    append(all, &program.path(0), LUWU_XDP_PEERS);
    append(all, &program.slot(0), end);
    append(all, program.biased_sum(0).data(), end * program.biased_sum(0).size());
    return all;
}

Bytes mantissas_of(std::uint32_t child, std::uint64_t sequence) {
    std::mt19937_64 random(100 * sequence + child);
    return mantissas(random, 1024, LUWU_INT32, kChildren);
}

// Random frames for a rig's job, from the peers that they say they are from, most of them. Half are gradients that only
// their checksum keeps out.
class Frames {
  public:
    Frames(std::uint64_t seed, const XdpRig& rig)
        : rig_(rig),
          fuzz_(seed,
                {0, 10, 32, offsetof(fabric::Heartbeat, holes),
                 offsetof(fabric::Heartbeat, holes) + sizeof(fabric::Hole), 256, 1024, 3328},
                [this](Head head, const Bytes& payload, auto change) { return sealed(head, payload, change); }) {}

    Bytes next(bool may_be_sealed) {
        const Bytes datagram = fuzz_.pick(2) == 0 ? fuzz_.packet(may_be_sealed) : gradient(may_be_sealed);
        std::uint32_t peer = LUWU_XDP_PARENT;
        if (datagram.size() >= sizeof(Head)) {
            Head head;
            std::memcpy(&head, datagram.data(), sizeof head);
            if (head.sender < kChildren) peer = head.sender;
        }
        if (fuzz_.pick(16) == 0) peer = static_cast<std::uint32_t>(fuzz_.pick(kChildren));
        Bytes frame = rig_.program.frame_from(peer, datagram);
        if (fuzz_.pick(16) == 0) frame[fuzz_.pick(kFrameHead)] ^= static_cast<std::byte>(1U << fuzz_.pick(8));
        return frame;
    }

  private:
    static constexpr std::uint32_t kLongest = 3328;

    Bytes sealed(Head head, const Bytes& payload, std::uint64_t key_change) {
        const std::uint64_t key = rig_.wiring.key ^ key_change;
        seals_.try_emplace(key, rig_.wiring.job, key, kLongest).first->second.close(head, payload);
        return datagram_of(head, payload);
    }
    // A gradient of another key, or damaged behind the fields that change from hop to hop.
    Bytes gradient(bool may_be_sealed) {
        const auto child = static_cast<std::uint32_t>(fuzz_.pick(kChildren));
        const std::uint64_t sequence = fuzz_.pick(rig_.program.job().window);
        const Sent sent = rig_.gradient(child, sequence, mantissas_of(child, sequence), LUWU_INT32);
        if (may_be_sealed) return sealed(sent.head, sent.payload, 0);
        if (fuzz_.pick(2) == 0) return sealed(sent.head, sent.payload, 1 + fuzz_.pick(20));
        Bytes damaged = sealed(sent.head, sent.payload, 0);
        constexpr std::size_t kFirst = offsetof(Head, bytes);
        damaged[kFirst + fuzz_.pick(damaged.size() - kFirst)] ^= static_cast<std::byte>(1U << fuzz_.pick(8));
        return damaged;
    }

    const XdpRig& rig_;
    std::map<std::uint64_t, fabric::Seal> seals_;  // thousands of weights are drawn for each
    Fuzz fuzz_;
};

Action send(XdpRig& rig, std::uint32_t child, std::uint64_t sequence) {
    return rig.send(child, rig.gradient(child, sequence, mantissas_of(child, sequence), LUWU_INT32));
}

// A job in the middle of its work.
void begin(XdpRig& rig) {
    for (std::uint64_t sequence = 0; sequence < kPartial; ++sequence) REQUIRE(send(rig, 0, sequence) == Action::drop);
    for (std::uint64_t sequence = kPartial; sequence < kComplete; ++sequence) {
        for (std::uint32_t child = 0; child < kChildren; ++child) send(rig, child, sequence);
        REQUIRE(rig.program.slot(sequence).arrived == rig.program.job().all_children);
        REQUIRE(rig.program.state().sent_end == sequence + 1);
    }
    rig.program.state().broadcasts = 1;
}

// The others' packets make the sum that they would have made without whatever came in between.
void check_sums(XdpRig& rig) {
    for (std::uint64_t sequence = 0; sequence < kPartial; ++sequence) {
        CHECK(send(rig, 1, sequence) == Action::drop);
        CHECK(send(rig, 2, sequence) == Action::redirect);
        fabric::Packet packet;
        REQUIRE(rig.open(packet));
        for (std::size_t at = 0; at < 1024; at += 4) {
            std::int32_t wanted = 0;
            for (std::uint32_t child = 0; child < kChildren; ++child) {
                std::int32_t value = 0;
                std::memcpy(&value, mantissas_of(child, sequence).data() + at, 4);
                wanted += value;
            }
            std::int32_t found = 0;
            std::memcpy(&found, packet.payload.data() + at, 4);
            REQUIRE(found == wanted);
        }
    }
}

bool leaves_as_sum(Action action, const Bytes& frame) {
    constexpr std::size_t kKindAt = kFrameHead + offsetof(Head, kind);
    return (action == Action::redirect || action == Action::send_back) && frame[kKindAt] == std::byte{LUWU_GRADIENTS};
}

bool leads_to_parent(const Bytes& frame) {
    constexpr std::size_t kAddressAt = 30;  // IPv4's destination; the port is UDP's
    constexpr std::size_t kPortAt = 36;
    const std::array address{std::byte{10}, std::byte{0}, std::byte{0}, std::byte{2}};
    const std::array port{std::byte{7070 >> 8}, std::byte{7070 & 0xff}};
    return std::equal(address.begin(), address.end(), frame.begin() + kAddressAt) &&
           std::equal(port.begin(), port.end(), frame.begin() + kPortAt);
}

}  // namespace

TEST_CASE("XDP: packets that strangers make leave counters and nothing else") {
    if (!can_run_xdp()) return;
    XdpRig rig(kChildren);
    begin(rig);
    Frames frames(1, rig);
    const Bytes before = maps_of(rig.program, kComplete);
    const XdpProgram::Stats stats = rig.program.stats();
    const std::uint64_t packets = fuzz_packets() / 2;
    std::uint64_t dropped = 0;
    for (std::uint64_t number = 0; number < packets; ++number) {
        CAPTURE(number);
        const Bytes frame = frames.next(false);
        Bytes after = frame;
        const Action action = rig.program.run(after);
        dropped += static_cast<std::uint64_t>(action == Action::drop);
        if (action != Action::drop && (action != Action::pass || after != frame))
            FAIL("a packet was taken for one of the job");
    }
    CHECK(maps_of(rig.program, kComplete) == before);
    for (std::uint64_t slot = kComplete; slot <= rig.program.job().slots_mask; ++slot)
        CHECK(rig.program.slot(slot).arrived == 0);
    XdpProgram::Stats expected = stats;
    expected[LUWU_XDP_DUPLICATES] += dropped;
    expected[LUWU_XDP_PACKETS_IN] += dropped;
    CHECK(rig.program.stats() == expected);
    CHECK(dropped > 0);
    check_sums(rig);
}

TEST_CASE("XDP: packets that someone with the key makes reach neither another job nor anyone but the neighbours") {
    if (!can_run_xdp()) return;
    XdpRig rig(kChildren);
    fabric::Wiring wiring = xdp_wiring();
    ++wiring.job;
    wiring.key = kOtherKey;
    XdpRig other(kChildren, wiring);
    begin(rig);
    begin(other);
    Frames frames(2, rig);
    const std::uint64_t slots = std::uint64_t{rig.program.job().slots_mask} + 1;
    const Bytes before = maps_of(other.program, slots);
    const XdpProgram::Stats stats = other.program.stats();
    const std::uint64_t packets = fuzz_packets() / 2;
    std::array<std::uint64_t, 5> actions{};
    for (std::uint64_t number = 0; number < packets; ++number) {
        CAPTURE(number);
        if (number % 500 == 0) std::fill_n(&rig.program.slot(0), slots, luwu_slot{});
        const Bytes frame = frames.next(true);
        Bytes after = frame;
        const Action action = rig.program.run(after);
        ++actions[static_cast<std::size_t>(action)];
        if (after.size() != frame.size()) FAIL("a packet has another length");
        if (leaves_as_sum(action, after) && !leads_to_parent(after)) FAIL("a sum goes to someone else");
        Bytes untouched = frame;
        if (other.program.run(untouched) != Action::pass || untouched != frame) FAIL("another job took the packet");
    }
    CHECK(maps_of(other.program, slots) == before);
    CHECK(other.program.stats() == stats);
    for (const Action action : {Action::drop, Action::pass, Action::redirect})
        CHECK(actions[static_cast<std::size_t>(action)] > packets / 100);
    CHECK(actions[static_cast<std::size_t>(Action::aborted)] == 0);
    check_sums(other);
}

}  // namespace luwu::test
