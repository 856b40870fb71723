// Buffers of blocks and places of gradients, over random histories.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "device/ring.h"

namespace luwu::test {

namespace {

using device::PageRing;
using device::Ring;

struct History {
    explicit History(std::uint64_t seed) : random(seed) {
        for (int i = 0; i < 12; ++i) sizes.push_back(100 * (1 + random() % 3));
        depth = static_cast<std::uint32_t>(1 + random() % 3);
    }
    std::uint32_t any_block() { return static_cast<std::uint32_t>(random() % sizes.size()); }
    [[nodiscard]] std::size_t placed_of_size(std::uint64_t bytes) const {
        return static_cast<std::size_t>(std::count_if(placed.begin(), placed.end(),
                                                      [&](const auto& entry) { return sizes[entry.first] == bytes; }));
    }

    std::mt19937_64 random;
    std::vector<std::uint64_t> sizes;
    std::uint32_t depth = 0;
    std::map<std::uint32_t, std::uint32_t> placed;        // buffer by block
    std::map<std::uint32_t, std::uint64_t> buffer_bytes;  // by buffer, for ever
};

void run_history(std::uint64_t seed) {
    History history(seed);
    Ring ring(history.sizes, history.depth);
    std::map<std::uint32_t, std::uint32_t> last;
    for (int event = 0; event < 300; ++event) {
        const std::uint32_t block = history.any_block();
        if (history.placed.contains(block)) {
            REQUIRE(ring.buffer_of(block) == history.placed[block]);
            ring.vacate(block);
            history.placed.erase(block);
            REQUIRE_FALSE(ring.buffer_of(block));
            continue;
        }
        std::set<std::uint32_t> used;
        for (const auto& [other, buffer] : history.placed) used.insert(buffer);
        const auto chosen = ring.choose(block);
        if (!chosen) {  // never while there is one
            REQUIRE(history.placed_of_size(history.sizes[block]) >= history.depth);
            ring.make_room(block);
            continue;
        }
        REQUIRE_FALSE(used.contains(*chosen));
        if (last.contains(block) && !used.contains(last[block])) REQUIRE(*chosen == last[block]);
        const auto bytes = history.buffer_bytes.emplace(*chosen, history.sizes[block]).first->second;
        REQUIRE(bytes == history.sizes[block]);
        history.placed[block] = last[block] = *chosen;
    }
}

void run_places(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t room = 4096 * (1 + random() % 8);
    PageRing places(room);
    std::deque<std::pair<std::uint64_t, std::uint64_t>> taken;
    for (int event = 0; event < 300; ++event) {
        if (!taken.empty() && random() % 2 == 0) {
            places.give_back_oldest();
            taken.pop_front();
            continue;
        }
        const std::uint64_t bytes = 1 + random() % room;
        const auto offset = places.take(bytes);
        if (!offset) {
            REQUIRE_FALSE(taken.empty());  // an empty one has room for all
            continue;
        }
        REQUIRE(*offset % 4096 == 0);
        REQUIRE(*offset + bytes <= room);
        for (const auto& [begin, end] : taken) REQUIRE((*offset + bytes <= begin || end <= *offset));
        taken.emplace_back(*offset, *offset + bytes);
        REQUIRE(places.taken() == taken.size());
    }
}

}  // namespace

TEST_CASE("a buffer has one block at a time, of its size, and a block the buffer that it had") {
    for (std::uint64_t seed = 0; seed < 3000; ++seed) run_history(seed);
}

TEST_CASE("blocks in turn have stable addresses") {
    const std::vector<std::uint64_t> same(9, 64);
    Ring ring(same, 3);
    std::vector<std::uint32_t> first;
    for (int pass = 0; pass < 3; ++pass) {
        std::vector<std::uint32_t> chosen;
        for (std::uint32_t block = 0; block < 9; ++block) {
            chosen.push_back(*ring.choose(block));
            ring.vacate(block);
        }
        if (pass == 0) first = chosen;
        CHECK(chosen == first);
    }
    CHECK(ring.buffers() == 3);
}

TEST_CASE("blocks that are held for long leave the others their buffers") {
    const std::vector<std::uint64_t> same(9, 64);
    const std::vector<std::uint32_t> kept{2, 5};
    Ring ring(same, 2, kept);
    std::vector<std::uint32_t> first;
    for (int pass = 0; pass < 3; ++pass) {
        std::vector<std::uint32_t> chosen;
        for (std::uint32_t block = 0; block < 9; ++block) {
            const auto buffer = ring.choose(block);
            REQUIRE(buffer);
            chosen.push_back(*buffer);
            if (block != 2 && block != 5) ring.vacate(block);
        }
        for (const std::uint32_t block : kept) ring.vacate(block);
        if (pass == 0) first = chosen;
        CHECK(chosen == first);
    }
    CHECK(ring.buffers() == 4);
}

TEST_CASE("places do not overlap, and an empty arena has room for all of it") {
    for (std::uint64_t seed = 0; seed < 3000; ++seed) run_places(seed);
}

}  // namespace luwu::test
