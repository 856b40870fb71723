// A network in one thread with a clock of its own: nodes, links with delay, rate and damage from a seed. What happens
// is a function of the seed alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "fabric/protocol/node.h"

namespace luwu::test {

using fabric::Address;
using fabric::Node;
using fabric::Time;

inline Address address_of(std::uint16_t number) {
    Address address;
    address.value.sin6_family = AF_INET6;
    address.value.sin6_port = number;
    return address;
}

struct Damage {
    double loss = 0;
    double duplicates = 0;
    double reordering = 0;  // share of packets that are held back for up to 2 ms
    double corruption = 0;  // share of packets in which some bits are flipped
};

// Each direction of every link; what finds no room in its queue is lost.
struct Speed {
    double bytes_per_second = 2e9;
    double most_frames = 1e9;   // that wait, of the present one's length
    double marks_beyond = 1e9;  // frames that wait: one that comes then is marked, where its sender lets queues do so
};

class SimulatedNetwork {
  public:
    explicit SimulatedNetwork(std::uint64_t seed) : random_(seed) {}

    // The node answers at address_of(number). It may be replaced: what it knew is gone.
    void attach(std::uint16_t number, Node* node) { nodes_[number] = node; }
    void damage(const Damage& damage) { damage_ = damage; }
    void limit(const Speed& speed) { speed_ = speed; }
    // Makes a group: a packet to its number goes to each member, over a link of its own.
    void group(std::uint16_t number, const std::vector<std::uint16_t>& members) { groups_[number] = members; }
    // Frames in the longest queue since the last call.
    [[nodiscard]] double take_longest_queue() { return std::exchange(longest_queue_, 0); }
    void cut(std::uint16_t number, bool cut) { cut_[number] = cut; }
    // Sets the node's clock to `reads`; until then the node has the network's clock. Hosts' clocks need not agree.
    void start_clock(std::uint16_t number, Time reads) { clocks_[number] = now_ - reads; }
    // Sees each datagram before it is damaged: from, to.
    std::function<void(std::uint16_t, std::uint16_t, std::span<const std::byte>)> tap;

    [[nodiscard]] Time now() const { return now_; }
    // Runs until `done`, or the time is over: whether it was done.
    bool run(const std::function<bool()>& done, Time at_most) {
        const Time end = now_ + at_most;
        while (!done()) {
            if (now_ >= end) return false;
            step();
        }
        return true;
    }

  private:
    struct Datagram {
        Time at;
        std::uint64_t order;
        std::uint16_t from;
        std::uint16_t to;
        std::vector<std::byte> bytes;
        bool marked;
        bool operator<(const Datagram& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
    };

    class Out final : public fabric::Outbox {
      public:
        Out(SimulatedNetwork& network, std::uint16_t from) : network_(network), from_(from) {}
        void send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) override {
            std::vector<std::byte> bytes(head.begin(), head.end());
            bytes.insert(bytes.end(), body.begin(), body.end());
            network_.carry(from_, to.value.sin6_port, std::move(bytes));
        }
        std::byte* room(std::size_t bytes) override {
            room_.resize(bytes);
            return room_.data();
        }

      private:
        SimulatedNetwork& network_;
        std::uint16_t from_;
        std::vector<std::byte> room_;
    };

    [[nodiscard]] bool chance(double share) { return share > 0 && std::uniform_real_distribution<>()(random_) < share; }

    void carry(std::uint16_t from, std::uint16_t to, std::vector<std::byte> bytes) {
        if (tap) tap(from, to, bytes);
        const auto group = groups_.find(to);
        if (group == groups_.end()) return carry_to(from, to, std::move(bytes));
        for (const std::uint16_t member : group->second) carry_to(from, member, bytes);
    }

    void carry_to(std::uint16_t from, std::uint16_t to, std::vector<std::byte> bytes) {
        if (cut_[from] || cut_[to] || chance(damage_.loss)) return;
        const int copies = chance(damage_.duplicates) ? 2 : 1;
        if (chance(damage_.corruption)) {
            for (int flips = 0; flips < 3; ++flips) {
                bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1U << (random_() % 8));
            }
        }
        for (int copy = 0; copy < copies; ++copy) {
            Time& free = link_free_[{from, to}];
            const double takes = 1000 + static_cast<double>(bytes.size()) / speed_.bytes_per_second * 1e9;
            const double frames = free > now_ ? static_cast<double>(free - now_) / takes : 0;
            if (frames > speed_.most_frames) continue;
            longest_queue_ = std::max(longest_queue_, frames);
            const bool marked = frames > speed_.marks_beyond && nodes_[from]->may_be_marked();
            free = std::max(free, now_) + static_cast<Time>(takes);
            const Time late = chance(damage_.reordering) ? random_() % 2'000'000 : 0;
            in_flight_.push({free + 20'000 + late, order_++, from, to, bytes, marked});
        }
    }

    void step() {
        Time next = now_ + 10'000'000;
        for (auto& [number, node] : nodes_) {
            if (node == nullptr) continue;
            Out out(*this, number);
            const Time began = clocks_[number];
            const Time wanted = node->advance(now_ - began, out) + began;
            next = std::min(next, std::max(wanted, now_ + 1000));
        }
        received_.clear();
        if (!in_flight_.empty()) next = std::min(next, in_flight_.top().at);
        now_ = std::max(now_, next);
        while (!in_flight_.empty() && in_flight_.top().at <= now_) {
            received_.push_back(in_flight_.top());
            const Datagram& datagram = received_.back();
            in_flight_.pop();
            Node* node = nodes_[datagram.to];
            if (node == nullptr || cut_[datagram.to]) continue;
            Out out(*this, datagram.to);
            node->receive(address_of(datagram.from), {datagram.bytes, datagram.marked}, now_ - clocks_[datagram.to],
                          out);
        }
    }

    std::mt19937_64 random_;
    Damage damage_;
    Speed speed_;
    std::map<std::uint16_t, Node*> nodes_;
    std::map<std::uint16_t, bool> cut_;
    std::map<std::uint16_t, Time> clocks_;  // the network's time at which a node's clock was 0; may wrap around
    std::map<std::uint16_t, std::vector<std::uint16_t>> groups_;
    std::map<std::pair<std::uint16_t, std::uint16_t>, Time> link_free_;
    std::priority_queue<Datagram> in_flight_;
    std::deque<Datagram> received_;  // since the nodes advanced
    std::uint64_t order_ = 0;
    double longest_queue_ = 0;
    Time now_ = 1'000'000'000;
};

}  // namespace luwu::test
