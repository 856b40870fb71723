// Slots of a switch: sums in any order of arrival, marks of conflicts, and the time when a slot is free again.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fabric/protocol/packet.h"
#include "kernels/fixed_point.h"
#include "switch/slots.h"

namespace luwu::test {

namespace {

using fabric::Head;
using fabric::Packet;
using fabric::Seal;
using fabric::Wiring;
using switching::Slots;
using Verdict = Slots::Verdict;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kChildren = 3;

Wiring wiring(luwu_form form = LUWU_INT32) {
    Wiring wiring;
    wiring.job = 5;
    wiring.key = 6;
    wiring.workers = kChildren;
    wiring.payload_bytes = 128;
    wiring.form = form;
    wiring.window = {8, 8, 8, 8};
    return wiring;
}

const Seal& seal() {
    static const Seal seal(5, 6, 128);
    return seal;
}

template <class Value>
Bytes bytes_of(const std::vector<Value>& values) {
    const auto* first = reinterpret_cast<const std::byte*>(values.data());
    return {first, first + values.size() * sizeof(Value)};
}

// Sums in this process lie in their slots.
fabric::Outbox& unused() {
    class Unused final : public fabric::Outbox {
        void send(const fabric::Address&, std::span<const std::byte>, std::span<const std::byte>) override {}
        std::byte* room(std::size_t) override { return nullptr; }
    };
    static Unused outbox;
    return outbox;
}

// A child's packet of one worker, sealed.
struct Sent {
    Sent(luwu_kind kind, luwu_form form, std::uint64_t sequence, Bytes body) : payload(std::move(body)) {
        head.kind = kind;
        head.form = form;
        head.count = 1;
        head.sequence = sequence;
        head.block = 4;
        head.index = 2;
        reseal();
    }
    void reseal() { seal().close(head, payload); }
    [[nodiscard]] Packet packet() const { return {head, payload}; }

    Head head{};
    Bytes payload;
};

Sent gradient(std::uint64_t sequence, const std::vector<std::int32_t>& values) {
    return {LUWU_GRADIENTS, LUWU_INT32, sequence, bytes_of(values)};
}

Slots gradient_slots() { return {LUWU_STREAM_GRADIENTS, wiring(), kChildren, false}; }

bool verifies(const Slots::Sum& sum) { return seal().checksum_of(sum.head, sum.payload) == sum.head.checksum; }

template <class Value>
std::vector<Value> values_of(const Slots::Sum& sum) {
    std::vector<Value> values(sum.payload.size() / sizeof(Value));
    std::memcpy(values.data(), sum.payload.data(), sum.payload.size());
    return values;
}

// Adds one packet of each child in every order; what came out must be the same.
template <class Value>
std::vector<Value> sum_in_every_order(luwu_stream stream, luwu_form form, bool ordered,
                                      const std::vector<std::vector<Value>>& parts) {
    std::vector<std::uint32_t> order(kChildren);
    std::iota(order.begin(), order.end(), 0);
    std::vector<Value> sum;
    const auto kind = stream == LUWU_STREAM_EXPONENTS ? LUWU_EXPONENTS : LUWU_GRADIENTS;
    do {
        Slots slots(stream, wiring(form), kChildren, ordered);
        for (std::uint32_t i = 0; i < kChildren; ++i) {
            const Sent sent(kind, form, 3, bytes_of(parts[order[i]]));
            CHECK(slots.add(order[i], sent.packet()) == (i + 1 < kChildren ? Verdict::added : Verdict::completed));
            CHECK(slots.complete(3) == (i + 1 == kChildren));
        }
        const auto result = slots.sum(3, unused());
        CHECK(result.head.count == kChildren);
        CHECK(result.head.block == 4);
        CHECK(result.head.index == 2);
        CHECK(result.head.flags == 0);
        CHECK(result.checksum_added == (stream == LUWU_STREAM_GRADIENTS && !ordered));
        if (result.checksum_added) CHECK(verifies(result));
        const auto values = values_of<Value>(result);
        if (!sum.empty()) CHECK(values == sum);
        sum = values;
    } while (std::next_permutation(order.begin(), order.end()));
    return sum;
}

}  // namespace

TEST_CASE("a slot's sum does not depend on who came first, and its checksum is the sum of theirs") {
    CHECK(sum_in_every_order<std::int32_t>(LUWU_STREAM_GRADIENTS, LUWU_INT32, false,
                                           {{1, -20, 1 << 29}, {5, 7, 1 << 29}, {-9, 3, -5}}) ==
          std::vector<std::int32_t>{-3, -10, (1 << 30) - 5});
    CHECK(sum_in_every_order<std::int16_t>(LUWU_STREAM_GRADIENTS, LUWU_INT16, false, {{100, -200}, {5, 7}, {-9, 3}}) ==
          std::vector<std::int16_t>{96, -190});
    CHECK(sum_in_every_order<std::uint8_t>(LUWU_STREAM_EXPONENTS, LUWU_BYTES, false,
                                           {{0, 100, 7, 255}, {40, 90, 7, 1}, {39, 0, 8, 0}}) ==
          std::vector<std::uint8_t>{40, 100, 8, 255});
}

TEST_CASE("floats are added in the children's order, whoever came first") {
    // (1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1: the order shows.
    CHECK(sum_in_every_order<float>(LUWU_STREAM_GRADIENTS, LUWU_FLOAT32, true,
                                    {{1e8F, 1e8F}, {1, -1e8F}, {-1e8F, 1}}) == std::vector<float>{0, 1});
}

TEST_CASE("contributions that do not agree are marked, whoever differs and in whatever") {
    const std::vector<void (*)(Head&)> changes{
        [](Head& head) { ++head.block; }, [](Head& head) { ++head.index; }, [](Head& head) { head.form = LUWU_INT16; },
        [](Head& head) { head.flags = LUWU_CONFLICT; }  // of a switch below
    };
    for (const auto change : changes) {
        for (std::uint32_t odd = 0; odd < kChildren; ++odd) {
            Slots slots = gradient_slots();
            for (std::uint32_t child = 0; child < kChildren; ++child) {
                Sent sent = gradient(0, {1, 2});
                if (child == odd) change(sent.head);
                sent.reseal();
                (void)slots.add(child, sent.packet());
            }
            const auto sum = slots.sum(0, unused());
            CHECK((sum.head.flags & LUWU_CONFLICT) != 0);
            CHECK(sum.head.count == kChildren);
            CHECK_FALSE(sum.checksum_added);
        }
    }
    Slots slots = gradient_slots();  // another length
    (void)slots.add(0, gradient(0, {1, 2}).packet());
    (void)slots.add(1, gradient(0, {1, 2, 3}).packet());
    CHECK(slots.add(2, gradient(0, {1}).packet()) == Verdict::completed);
    CHECK((slots.sum(0, unused()).head.flags & LUWU_CONFLICT) != 0);
    CHECK(slots.sum(0, unused()).payload.size() == 8);
}

TEST_CASE("each child counts once, and what is complete is wanted again") {
    Slots slots = gradient_slots();
    const Sent sent = gradient(2, {10});
    CHECK(slots.add(0, sent.packet()) == Verdict::added);
    CHECK(slots.add(0, sent.packet()) == Verdict::duplicate);
    CHECK(slots.add(1, sent.packet()) == Verdict::added);
    CHECK(slots.add(2, sent.packet()) == Verdict::completed);
    CHECK(slots.add(0, sent.packet()) == Verdict::duplicate);  // its sum has yet to be sent
    slots.sent(2, 1);
    for (std::uint32_t child = 0; child < kChildren; ++child) CHECK(slots.add(child, sent.packet()) == Verdict::again);
    CHECK(values_of<std::int32_t>(slots.sum(2, unused())) == std::vector<std::int32_t>{30});
    CHECK(slots.sum(2, unused()).head.count == 3);
    CHECK(slots.heard(0) == 0);
    (void)slots.add(0, gradient(0, {1}).packet());
    (void)slots.add(0, gradient(1, {1}).packet());
    CHECK(slots.heard(0) == 3);
    CHECK(slots.heard(1) == 0);
    CHECK(slots.add(0, gradient(8, {1}).packet()) == Verdict::outside);
    CHECK(slots.add(0, gradient(~std::uint64_t{0}, {1}).packet()) == Verdict::outside);
    CHECK(slots.add(1, gradient(0, std::vector<std::int32_t>(33)).packet()) == Verdict::outside);  // longer than a slot
    CHECK(slots.add(0, gradient(7, {1}).packet()) == Verdict::added);
}

TEST_CASE("slots that the server has are free for the next numbers, also where children lag behind") {
    Slots slots = gradient_slots();
    for (std::uint64_t sequence = 0; sequence < 4; ++sequence) {
        for (std::uint32_t child = 0; child < kChildren; ++child) {
            if (child != 2 || sequence < 2) (void)slots.add(child, gradient(sequence, {1}).packet());
        }
    }
    CHECK(slots.complete(1));
    CHECK_FALSE(slots.complete(2));
    slots.release(3);  // the server has heard of it through what this switch was before
    CHECK(slots.base() == 3);
    CHECK(slots.end() == 11);
    CHECK(slots.heard(2) == 3);
    CHECK(slots.heard(0) == 4);
    slots.release(1);
    CHECK(slots.base() == 3);
    CHECK(slots.add(2, gradient(2, {1}).packet()) == Verdict::duplicate);
    CHECK(slots.add(2, gradient(3, {1}).packet()) == Verdict::completed);
    for (std::uint32_t child = 0; child < kChildren; ++child) (void)slots.add(child, gradient(10, {7}).packet());
    CHECK(values_of<std::int32_t>(slots.sum(10, unused())) ==
          std::vector<std::int32_t>{21});  // nothing of 2, which had the slot
    slots.release(1000);
    CHECK(slots.add(0, gradient(1000, {4}).packet()) == Verdict::added);
    slots.begin_epoch(1);
    CHECK(slots.end() == 8);
    CHECK(slots.add(0, gradient(0, {4}).packet()) == Verdict::added);
    CHECK(slots.sum(0, unused()).head.count == 1);
}

TEST_CASE("a sum that the parent misses is sent again once in a while, and only if it is there") {
    Slots slots = gradient_slots();
    constexpr fabric::Time kAge = 100;
    for (std::uint32_t child = 0; child < kChildren; ++child) (void)slots.add(child, gradient(1, {1}).packet());
    slots.sent(1, 1000);
    CHECK_FALSE(slots.take_hole(0, 5000, kAge));
    CHECK_FALSE(slots.take_hole(9, 5000, kAge));  // the slot of 1
    CHECK_FALSE(slots.take_hole(1, 1099, kAge));
    CHECK(slots.take_hole(1, 1100, kAge));
    CHECK_FALSE(slots.take_hole(1, 1199, kAge));
    CHECK(slots.take_hole(1, 1200, kAge));
    slots.release(2);
    CHECK_FALSE(slots.take_hole(1, 5000, kAge));
}

}  // namespace luwu::test
