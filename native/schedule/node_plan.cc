#include "schedule/node_plan.h"

#include <algorithm>
#include <set>
#include <utility>

namespace luwu::schedule {

namespace {

// The place of each stripe's node, where every node has a stripe; else nothing.
std::vector<std::uint32_t> nodes_of_stripes(std::span<const store::NumaNode> nodes,
                                            std::span<const std::optional<int>> disks) {
    std::vector<std::uint32_t> places;
    std::vector<bool> has_disk(nodes.size(), false);
    for (const std::optional<int>& disk : disks) {
        const auto node = std::find_if(nodes.begin(), nodes.end(),
                                       [&](const store::NumaNode& other) { return disk == other.number; });
        if (node == nodes.end()) return {};
        places.push_back(static_cast<std::uint32_t>(node - nodes.begin()));
        has_disk[places.back()] = true;
    }
    if (std::find(has_disk.begin(), has_disk.end(), false) != has_disk.end()) return {};
    return places;
}

store::NumaNode all_of(std::span<const store::NumaNode> nodes) {
    store::NumaNode all;
    for (const store::NumaNode& node : nodes) {
        all.processors.insert(all.processors.end(), node.processors.begin(), node.processors.end());
    }
    return all;
}

}  // namespace

NodePlan plan_nodes(const store::Layout& layout, std::vector<store::NumaNode> nodes,
                    std::span<const std::optional<int>> disks, std::uint32_t threads) {
    std::set<std::uint32_t> with_threads;
    for (const ThreadPlace& place : place_threads(nodes, threads)) with_threads.insert(place.node);
    if (with_threads.size() < nodes.size()) nodes = {all_of(nodes)};
    NodePlan plan{std::move(nodes), {}};
    const auto stripes = nodes_of_stripes(plan.nodes, disks);
    std::uint32_t turn = 0;
    for (const store::ChunkPlace& place : layout.chunks()) {
        plan.of_chunks.push_back(stripes.empty() ? turn : stripes[place.stripe]);
        if (place.trainable) turn = (turn + 1) % plan.count();
    }
    return plan;
}

void NodePlan::place(std::span<std::byte> memory, std::uint32_t node) const {
    if (nodes.size() > 1) store::prefer_node(memory, nodes[node].number);
}

void NodePlan::place_between(std::span<std::byte> memory) const {
    if (nodes.size() > 1) store::interleave(memory, nodes);
}

std::vector<ThreadPlace> place_threads(std::span<const store::NumaNode> nodes, std::uint32_t threads) {
    std::vector<std::pair<std::uint32_t, int>> processors;  // with their node
    for (std::uint32_t node = 0; node < nodes.size(); ++node) {
        for (const int processor : nodes[node].processors) processors.emplace_back(node, processor);
    }
    std::vector<ThreadPlace> places(threads);
    if (processors.empty()) return places;
    for (std::uint32_t thread = 0; thread < threads; ++thread) {
        const auto& [node, processor] = processors[thread * processors.size() / threads];
        places[thread].node = node;
        if (threads == processors.size()) {
            places[thread].processors = {processor};
        } else if (nodes.size() > 1) {
            places[thread].processors = nodes[node].processors;
        }
    }
    return places;
}

}  // namespace luwu::schedule
