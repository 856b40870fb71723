// Divides a server's chunks and threads among the NUMA nodes of its machine. docs/decisions/0041-numa-nodes.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/layout.h"
#include "store/numa.h"

namespace luwu::schedule {

// A node is named by its place in `nodes`. As made here without a plan, all is on one node.
struct NodePlan {
    std::vector<store::NumaNode> nodes;
    std::vector<std::uint32_t> of_chunks;  // per chunk of the layout

    [[nodiscard]] std::uint32_t count() const { return nodes.empty() ? 1 : static_cast<std::uint32_t>(nodes.size()); }
    [[nodiscard]] std::uint32_t of_chunk(std::size_t chunk) const { return of_chunks.empty() ? 0 : of_chunks[chunk]; }
    // Takes the pages of a range from this node, and those of a range that all use from all. Nothing with one node.
    void place(std::span<std::byte> memory, std::uint32_t node) const;
    void place_between(std::span<std::byte> memory) const;
};

// `disks`: the number of each stripe's node, where the system tells it. A chunk belongs to the node of its disk where
// every node has one. Otherwise the nodes take turns: an update is limited by memory, so it needs that of all nodes.
// All is on one node where another would have none of the threads.
[[nodiscard]] NodePlan plan_nodes(const store::Layout& layout, std::vector<store::NumaNode> nodes,
                                  std::span<const std::optional<int>> disks, std::uint32_t threads);

struct ThreadPlace {
    std::uint32_t node = 0;
    std::vector<int> processors;  // that it is bound to; none: wherever the system puts it

    bool operator==(const ThreadPlace&) const = default;
};

// Threads in proportion to the nodes' processors. With as many threads as processors each has one processor: an update
// then takes equal parts of all of them at the same time. A worker on the same machine, whose threads wait for each
// other, loses half as much as when two updates queue up on one processor: 3 % of a step on two.
[[nodiscard]] std::vector<ThreadPlace> place_threads(std::span<const store::NumaNode> nodes, std::uint32_t threads);

}  // namespace luwu::schedule
