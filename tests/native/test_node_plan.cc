#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "schedule/node_plan.h"
#include "schedule/node_queues.h"
#include "schedule/state_cache.h"
#include "support.h"

using namespace luwu;

namespace {

using schedule::ThreadPlace;
using Disks = std::vector<std::optional<int>>;

const std::vector<store::NumaNode> kTwo{{0, {0, 1}}, {3, {2, 3}}};

store::Layout layout_of(std::uint32_t stripes) { return {test::small_shape(kernels::Dtype::bfloat16), stripes}; }

}  // namespace

TEST_CASE("a chunk is on the node of its disk where every node has one") {
    const store::Layout layout = layout_of(3);
    const auto plan = schedule::plan_nodes(layout, kTwo, Disks{3, 0, 3}, 4);
    for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
        CHECK(plan.of_chunk(chunk) == (layout.chunks()[chunk].stripe == 1 ? 0 : 1));
    }
}

TEST_CASE("trainable chunks take turns on the nodes where a node has no disk, or nobody knows a disk's") {
    const store::Layout layout = layout_of(2);
    for (const Disks& disks : {Disks{0, 0}, Disks{0, std::nullopt}, Disks{0, 7}}) {
        const auto plan = schedule::plan_nodes(layout, kTwo, disks, 4);
        std::array<std::uint32_t, 2> chunks{};
        for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
            if (layout.chunks()[chunk].trainable) ++chunks[plan.of_chunk(chunk)];
        }
        CHECK(chunks[0] > 0);
        CHECK((chunks[0] == chunks[1] || chunks[0] == chunks[1] + 1));
    }
}

TEST_CASE("all is on one node where another would have no thread") {
    const store::Layout layout = layout_of(2);
    const auto plan = schedule::plan_nodes(layout, {{0, {0, 1, 2, 3, 4, 5}}, {1, {6, 7}}}, Disks{0, 1}, 3);
    CHECK(plan.nodes == std::vector<store::NumaNode>{{0, {0, 1, 2, 3, 4, 5, 6, 7}}});
    for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) CHECK(plan.of_chunk(chunk) == 0);
}

TEST_CASE("threads are divided as the nodes' processors are") {
    const std::vector<store::NumaNode> nodes{{0, {0, 1, 2, 3, 4, 5}}, {1, {6, 7}}};
    const auto four = schedule::place_threads(nodes, 4);
    CHECK(four == std::vector<ThreadPlace>{
                      {0, nodes[0].processors}, {0, nodes[0].processors}, {0, nodes[0].processors}, {1, {6, 7}}});
    const auto eight = schedule::place_threads(nodes, 8);
    CHECK(eight[5] == ThreadPlace{0, {5}});
    CHECK(eight[6] == ThreadPlace{1, {6}});
    // On one node a thread is bound only where each processor has one.
    const std::vector<store::NumaNode> one{{0, {4, 6}}};
    CHECK(schedule::place_threads(one, 2) == std::vector<ThreadPlace>{{0, {4}}, {0, {6}}});
    CHECK(schedule::place_threads(one, 1) == std::vector<ThreadPlace>{{0, {}}});
    CHECK(schedule::place_threads(one, 3) == std::vector<ThreadPlace>{{0, {}}, {0, {}}, {0, {}}});
    CHECK(schedule::place_threads({}, 2) == std::vector<ThreadPlace>(2));
}

TEST_CASE("states of one node lie together, and a chunk takes another node's buffer only where its own has none") {
    const store::Layout layout = layout_of(2);
    const auto nodes = schedule::plan_nodes(layout, kTwo, Disks{0, 3}, 4);
    auto plan = schedule::plan_residency(layout, 1U << 30, 1, test::Rig::held());
    REQUIRE(plan.state_buffers == 0);
    // All but the pinned chunks of the first half take turns in four buffers.
    const std::size_t chunks = layout.chunks().size();
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const store::ChunkPlace& place = layout.chunks()[chunk];
        plan.state_pinned[chunk] = place.trainable && chunk < chunks / 2;
        plan.state_buffer_bytes = std::max(plan.state_buffer_bytes, place.state_bytes());
    }
    plan.state_buffers = 4;
    schedule::StateCache cache(layout, plan, nodes);
    std::array<std::byte*, 2> last{};
    std::array<std::byte*, 2> first{};
    std::vector<std::uint32_t> rotating;
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        if (!layout.chunks()[chunk].trainable) continue;
        if (!cache.pinned(chunk)) {
            rotating.push_back(chunk);
            continue;
        }
        const std::uint32_t node = nodes.of_chunk(chunk);
        if (first[node] == nullptr) first[node] = cache.memory(chunk);
        CHECK(cache.memory(chunk) >= last[node]);
        last[node] = cache.memory(chunk);
    }
    CHECK(last[0] < first[1]);
    const auto node_of_memory = [&](std::uint32_t chunk) { return cache.memory(chunk) < first[1] ? 0U : 1U; };
    std::vector<std::uint32_t> own;
    std::copy_if(rotating.begin(), rotating.end(), std::back_inserter(own),
                 [&](std::uint32_t chunk) { return nodes.of_chunk(chunk) == 1; });
    REQUIRE(own.size() >= 3);
    for (int turn = 0; turn < 2; ++turn) {  // a buffer that is given back is its own node's again
        for (std::size_t i = 0; i < 3; ++i) REQUIRE(cache.place(own[i], false));
        CHECK(node_of_memory(own[0]) == 1);
        CHECK(node_of_memory(own[1]) == 1);
        CHECK(node_of_memory(own[2]) == 0);
        for (std::size_t i = 0; i < 3; ++i) cache.invalidate(own[i]);
    }
}

TEST_CASE("a thread takes its own node's work first, and another's only beyond what was left to that node's threads") {
    schedule::NodeQueues<int> queues(2);
    CHECK_FALSE(queues.add(0, 1, false));  // nobody waits
    CHECK(queues.take(1) == 1);            // nobody of node 0 was woken for it
    queues.begin_wait(0);
    queues.begin_wait(1);
    CHECK(queues.add(0, 2, false) == 0);
    CHECK_FALSE(queues.take(1));
    CHECK(queues.add(0, 3, false) == 1);  // more than the waiting thread of node 0 takes
    queues.end_wait(1);
    CHECK(queues.add(1, 4, false) == std::nullopt);
    CHECK(queues.take(1) == 4);
    CHECK(queues.take(1) == 2);
    queues.end_wait(0);
    CHECK(queues.take(0) == 3);
    CHECK_FALSE(queues.take(0));
    CHECK_FALSE(queues.add(0, 5, false));
    CHECK_FALSE(queues.add(0, 6, true));
    queues.erase_if([](int work) { return work == 6; });
    CHECK(queues.take(0) == 5);
}

TEST_CASE("no thread waits for ever while there is work, whichever wakes first") {
    for (std::uint32_t seed = 0; seed < 2000; ++seed) {
        std::mt19937 random(seed);
        const auto below = [&](std::size_t end) { return static_cast<std::uint32_t>(random() % end); };
        const std::uint32_t nodes = 1 + below(3);
        schedule::NodeQueues<int> queues(nodes);
        enum class Thread : std::uint8_t { looks, works, waits, woken };
        std::vector<Thread> threads(1 + below(6), Thread::looks);
        std::vector<std::uint32_t> home(threads.size());
        for (std::uint32_t& node : home) node = below(nodes);
        int added = 0;
        std::vector<int> taken;
        const auto step = [&](std::size_t i) {
            if (threads[i] == Thread::works) threads[i] = Thread::looks;
            if (threads[i] == Thread::waits) return;
            if (threads[i] == Thread::woken) queues.end_wait(home[i]);
            if (const auto work = queues.take(home[i])) {
                taken.push_back(*work);
                threads[i] = Thread::works;
            } else {
                queues.begin_wait(home[i]);
                threads[i] = Thread::waits;
            }
        };
        for (int event = 0; event < 60; ++event) {
            if (below(2) == 0) {
                step(below(threads.size()));
                continue;
            }
            const auto woken = queues.add(below(nodes), added++, below(4) == 0);
            if (!woken) continue;
            for (std::size_t i = 0; i < threads.size(); ++i) {
                if (threads[i] != Thread::waits || home[i] != *woken) continue;
                threads[i] = Thread::woken;
                break;
            }
        }
        // Threads that were woken, or still work, come to an end; those that wait were forgotten.
        for (int round = 0; round < 80; ++round) {
            for (std::size_t i = 0; i < threads.size(); ++i) step(i);
        }
        std::sort(taken.begin(), taken.end());
        std::vector<int> all(static_cast<std::size_t>(added));
        std::iota(all.begin(), all.end(), 0);
        CHECK_MESSAGE(taken == all, "seed " << seed);
    }
}
