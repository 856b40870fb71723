// Spans of a switch's sums: of each block one, from its first packet until the last of its sums was sent.
#include <doctest/doctest.h>

#include <vector>

#include "switch/block_sums.h"

using luwu::fabric::Head;
using luwu::switching::BlockSums;
using luwu::trace::Kind;
using luwu::trace::Record;

namespace {

Head packet(std::uint64_t first, std::uint32_t index, std::uint32_t block) {
    Head head{};
    head.sequence = first + index;
    head.index = index;
    head.block = block;
    head.bytes = 100;
    return head;
}

std::vector<Record> records_of(BlockSums& sums) {
    const auto recorded = sums.stop();
    return {recorded.records().begin(), recorded.records().end()};
}

}  // namespace

TEST_CASE("a block's sum begins with its first packet from any child, and ends with the last of its sums") {
    BlockSums sums;
    sums.came(packet(0, 0, 1), 5);  // nobody traces
    sums.start(10);
    sums.came(packet(10, 1, 7), 20);  // before the first one, as networks have it
    sums.came(packet(10, 0, 7), 21);
    sums.came(packet(10, 0, 7), 25);  // of another child
    sums.sent(packet(10, 0, 7), 26);
    sums.came(packet(12, 0, 3), 30);  // the next block comes while this one is under way
    sums.sent(packet(10, 1, 7), 31);
    sums.sent(packet(12, 0, 3), 32);
    sums.sent(packet(0, 0, 1), 40);  // it began before
    const auto found = records_of(sums);
    REQUIRE(found.size() == 2);
    CHECK(found[0].block == 7);
    CHECK(found[0].begin_ns == 20);
    CHECK(found[0].end_ns == 31);
    CHECK(found[0].bytes == 200);
    CHECK(found[0].kind == Kind::sum);
    CHECK(found[1].block == 3);
    CHECK(found[1].begin_ns == 30);
    CHECK(found[1].end_ns == 32);
    CHECK_FALSE(sums.on());
}

TEST_CASE("a block that comes again in another step has a span of its own") {
    BlockSums sums;
    sums.start(10);
    for (const std::uint64_t first : {0U, 5U}) {
        sums.came(packet(first, 0, 2), 10 + first);
        sums.sent(packet(first, 0, 2), 11 + first);
    }
    const auto found = records_of(sums);
    REQUIRE(found.size() == 2);
    CHECK(found[1].begin_ns == 15);
}

TEST_CASE("blocks that the server has are recorded at once, and those of which no sum was sent never") {
    BlockSums sums;
    sums.start(1);
    for (const std::uint32_t block : {0U, 1U, 2U}) sums.came(packet(std::uint64_t{4} * block, 0, block), 1 + block);
    sums.sent(packet(0, 0, 0), 9);
    sums.release(3);  // it may still lose a packet of the first block
    sums.sent(packet(0, 3, 0), 10);
    sums.release(4);
    sums.sent(packet(0, 3, 0), 99);
    sums.sent(packet(4, 0, 1), 12);
    const auto recorded = sums.stop();
    REQUIRE(recorded.count == 1);
    CHECK(recorded.records()[0].end_ns == 10);
    CHECK(recorded.dropped == 1);
}

TEST_CASE("a new epoch ends what is under way: its packets are numbered anew") {
    BlockSums sums;
    sums.start(4);
    sums.came(packet(0, 0, 1), 1);
    sums.sent(packet(0, 0, 1), 2);
    sums.begin_epoch();
    sums.came(packet(0, 0, 1), 8);
    sums.sent(packet(0, 0, 1), 9);
    const auto found = records_of(sums);
    REQUIRE(found.size() == 2);
    CHECK(found[0].end_ns == 2);
    CHECK(found[1].begin_ns == 8);
}
