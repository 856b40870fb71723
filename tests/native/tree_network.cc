#include "tree_network.h"

#include <algorithm>
#include <numeric>

#include "fabric/core/address.h"

namespace luwu::test {

namespace {

std::string text_of(std::size_t number) { return "10.77.0." + std::to_string(number + 1); }

// By child: its parent. 0 is the server.
std::vector<std::size_t> parents_of(std::uint32_t workers, std::uint32_t fan_in) {
    std::vector<std::size_t> level(workers);
    std::iota(level.begin(), level.end(), 1);
    std::vector<std::size_t> parents(1 + workers, 0);
    while (fan_in > 0 && (level.size() > 1 || parents.size() == 1 + workers)) {
        std::vector<std::size_t> above;
        for (std::size_t first = 0; first < level.size(); first += fan_in) {
            for (std::size_t i = first; i < std::min<std::size_t>(first + fan_in, level.size()); ++i) {
                parents[level[i]] = parents.size();
            }
            above.push_back(parents.size());
            parents.push_back(0);
        }
        level = above;
    }
    return parents;
}

}  // namespace

fabric::Address TreeNetwork::address(std::size_t number) { return fabric::parse_address(text_of(number), 0); }

TreeNetwork::TreeNetwork(std::uint32_t workers, std::uint32_t fan_in) {
    const std::vector<std::size_t> parents = parents_of(workers, fan_in);
    interfaces_.resize(parents.size());
    for (std::size_t number = 0; number < parents.size(); ++number) {
        hosts_.emplace_back().ip({"address add " + text_of(number) + "/32 dev lo"});
    }
    for (std::size_t child = 1; child < parents.size(); ++child) link(child, parents[child]);
}

void TreeNetwork::link(std::size_t child, std::size_t parent) {
    const std::string below = "down" + std::to_string(child);
    join(hosts_[child], "up", hosts_[parent], below);
    hosts_[child].ip({"route add " + text_of(parent) + "/32 dev up"});
    hosts_[parent].ip({"route add " + text_of(child) + "/32 dev " + below});
    interfaces_[child].emplace_back("up");
    interfaces_[parent].push_back(below);
}

}  // namespace luwu::test
