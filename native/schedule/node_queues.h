// A queue of work for each NUMA node. A thread takes the work of its own node, and another node's only where that has
// more than the threads that were woken for it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace luwu::schedule {

template <class Work>
class NodeQueues {
  public:
    explicit NodeQueues(std::uint32_t nodes) : nodes_(nodes) {}

    // Returns the node of which a waiting thread is to be woken; nothing: no thread waits. `first`: before all else.
    [[nodiscard]] std::optional<std::uint32_t> add(std::uint32_t node, Work work, bool first) {
        auto& queue = nodes_[node].queue;
        first ? queue.push_front(std::move(work)) : queue.push_back(std::move(work));
        if (wakes(nodes_[node])) return node;
        for (std::uint32_t other = 0; other < nodes_.size(); ++other) {
            if (wakes(nodes_[other])) return other;
        }
        return std::nullopt;
    }

    // Returns the next work for a thread of this node; nothing: it is to wait.
    [[nodiscard]] std::optional<Work> take(std::uint32_t node) {
        std::uint32_t from = node;
        if (nodes_[node].queue.empty()) {
            for (std::uint32_t other = 0; other < nodes_.size(); ++other) {
                if (surplus(nodes_[other]) > surplus(nodes_[from])) from = other;
            }
            if (surplus(nodes_[from]) <= 0) return std::nullopt;
        }
        Work work = std::move(nodes_[from].queue.front());
        nodes_[from].queue.pop_front();
        return work;
    }

    void begin_wait(std::uint32_t node) { ++nodes_[node].waiting; }
    void end_wait(std::uint32_t node) {
        --nodes_[node].waiting;
        if (nodes_[node].woken > 0) --nodes_[node].woken;
    }

    template <class Predicate>
    void erase_if(Predicate drops) {
        for (Node& node : nodes_) std::erase_if(node.queue, drops);
    }
    void clear() {
        for (Node& node : nodes_) node.queue.clear();
    }

  private:
    struct Node {
        std::deque<Work> queue;
        std::uint32_t waiting = 0;  // threads
        std::uint32_t woken = 0;    // of them: those that are to take something
    };

    static bool wakes(Node& node) {
        if (node.woken == node.waiting) return false;
        ++node.woken;
        return true;
    }
    // Work that no thread was woken for.
    [[nodiscard]] static std::ptrdiff_t surplus(const Node& node) {
        return static_cast<std::ptrdiff_t>(node.queue.size()) - static_cast<std::ptrdiff_t>(node.woken);
    }

    std::vector<Node> nodes_;
};

}  // namespace luwu::schedule
