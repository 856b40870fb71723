// A whole job over a simulated network: workers that train as the runtime does, a server that keeps every sum, and a
// tree of switches between them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <tuple>

#include "fabric/protocol/server_node.h"
#include "fabric/protocol/worker_node.h"
#include "kernels/fixed_point.h"
#include "simulated_network.h"
#include "switch/kernel_slots.h"
#include "switch/switch_node.h"
#include "switch_choice.h"

// Not in the tests' namespace alone: other tests have workers and servers of their own.
namespace luwu::test::simulated {

using fabric::kMillisecond;
using fabric::Wiring;

inline constexpr Time kSecond = 1'000 * kMillisecond;
inline constexpr std::uint16_t kServer = 1;
inline constexpr std::uint16_t kSwitches = 100;
inline constexpr std::uint16_t kWorkers = 1000;
inline constexpr std::uint16_t kGroup = 2000;

inline Wiring small_wiring(std::uint32_t workers, luwu_form form = LUWU_INT32) {
    Wiring wiring;
    wiring.job = 77;
    wiring.key = 0x1234567890abcdef;
    wiring.epoch = 1;
    wiring.workers = workers;
    wiring.payload_bytes = 256;
    wiring.form = form;
    wiring.window = {64, 8, 8, 64};
    wiring.blocks = {{1000, true}, {5000, true}, {33, true}, {20000, true}, {700, false}};
    wiring.timing = {kMillisecond / 2, 50 * kMillisecond, 50 * kMillisecond, kSecond, 5 * kMillisecond};
    return wiring;
}

inline float parameter_at(std::uint64_t step, std::uint32_t block, std::uint64_t element) {
    return static_cast<float>(step * 1000 + block) + static_cast<float>(element) / 65536.0F;
}

inline float gradient_at(std::uint64_t step, std::uint32_t worker, std::uint32_t block, std::uint64_t element) {
    return std::sin(static_cast<float>(element * 7 + block + 1) * static_cast<float>(worker + 1 + step));
}

// A worker that pulls every block twice a step, two ahead, and pushes the trainable ones, as the runtime does.
class Worker {
  public:
    Worker(const Wiring& wiring, const Address& parent, std::uint16_t child, std::uint32_t rank)
        : wiring_(wiring),
          rank_(rank),
          node(wiring, parent, child, {[this] { pulled(); }, [this] { ++pushes_done; }, [this] { interrupted(); }}) {}

    void start(std::uint64_t step) {
        step_ = step;
        next_ = pulls_done = pushes_done = pushes_ = 0;
        values_.clear();
        gradients_.clear();
        post();
        post();
    }
    [[nodiscard]] bool finished() const {
        return interrupted_ || (pulls_done == pulls().size() && pushes_done == pushes_ && bad_values == 0);
    }
    [[nodiscard]] bool was_interrupted() const { return interrupted_; }
    void forget_interruption() { interrupted_ = false; }

    std::uint64_t pulls_done = 0;
    std::uint64_t pushes_done = 0;
    std::uint64_t bad_values = 0;

  private:
    [[nodiscard]] std::vector<std::uint32_t> pulls() const {  // there and back
        std::vector<std::uint32_t> order(wiring_.blocks.size());
        std::iota(order.begin(), order.end(), 0);
        std::vector<std::uint32_t> back(order.rbegin(), order.rend());
        order.insert(order.end(), back.begin(), back.end());
        return order;
    }
    void post() {
        const auto order = pulls();
        if (next_ >= order.size()) return;
        values_.emplace_back(wiring_.blocks[order[next_]].elements, -1.0F);
        node.pull(order[next_++], reinterpret_cast<std::byte*>(values_.back().data()));
    }
    void pulled() {
        const std::uint32_t block = pulls()[pulls_done];
        const std::vector<float>& values = values_[pulls_done];
        for (std::uint64_t i = 0; i < values.size(); ++i) bad_values += values[i] != parameter_at(step_, block, i);
        const bool backward = pulls_done++ >= wiring_.blocks.size();
        if (backward && wiring_.blocks[block].trainable) push(block);
        post();
    }
    void push(std::uint32_t block) {
        std::vector<float> gradient(wiring_.blocks[block].elements);
        for (std::uint64_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_at(step_, rank_, block, i);
        std::vector<std::uint8_t> exponents(kernels::fixed_groups(gradient.size()));
        kernels::fixed_exponents(gradient.data(), kernels::Dtype::float32, gradient.size(), exponents.data());
        gradients_.push_back(std::move(gradient));
        node.push(block, reinterpret_cast<const std::byte*>(gradients_.back().data()), std::move(exponents));
        ++pushes_;
    }
    void interrupted() { interrupted_ = true; }

    Wiring wiring_;
    std::uint32_t rank_;
    std::uint64_t step_ = 0;
    std::size_t next_ = 0;
    std::uint64_t pushes_ = 0;
    bool interrupted_ = false;
    std::deque<std::vector<float>> values_;
    std::deque<std::vector<float>> gradients_;

  public:
    fabric::WorkerNode node;  // last: its events use what is above
};

// A server that offers each wanted block a while later and keeps every sum. One gradient buffer is in use at most.
class Server {
  public:
    Server(const Wiring& wiring, const Address& child, const Address& group)
        : wiring_(wiring), node(wiring, child, group, events()) {}

    void start(std::uint64_t step) {
        parameters_.clear();
        sums.clear();
        for (std::uint32_t block = 0; block < wiring_.blocks.size(); ++block) {
            parameters_.emplace_back(wiring_.blocks[block].elements);
            for (std::uint64_t i = 0; i < parameters_.back().size(); ++i) {
                parameters_.back()[i] = parameter_at(step, block, i);
            }
        }
    }
    // As the pipeline's threads do, from outside of the node.
    void work() {
        while (!offers_.empty()) {
            const auto [pull, block] = offers_.back();  // in another order than they were wanted in
            node.offer(pull, reinterpret_cast<const std::byte*>(parameters_[block].data()));
            offers_.pop_back();
        }
        if (busy_ && collected_) busy_ = collected_ = false;
    }

    void begin_epoch() {  // what was under way is dropped on both sides
        node.begin_epoch();
        offers_.clear();
        undelivered = 0;
        busy_ = collected_ = false;
    }

    std::vector<std::pair<std::uint32_t, std::vector<float>>> sums;  // in the order of their arrival
    std::uint64_t delivered = 0;
    std::uint64_t undelivered = 0;  // parameters must stay as they are
    std::string broken;

  private:
    fabric::ServerEvents events() {
        return {[this](std::uint64_t pull, std::uint32_t block) {
                    offers_.emplace_back(pull, block);
                    ++undelivered;
                },
                [this](std::uint32_t) {
                    ++delivered;
                    --undelivered;
                },
                [this](std::uint32_t block) -> float* {
                    if (busy_) return nullptr;
                    busy_ = true;
                    buffer_.assign(wiring_.blocks[block].elements, -1.0F);
                    return buffer_.data();
                },
                [this](std::uint32_t block, float* sum) {
                    sums.emplace_back(block, std::vector<float>(sum, sum + wiring_.blocks[block].elements));
                    collected_ = true;
                },
                [this](const std::string& what) { broken = what; }};
    }

    Wiring wiring_;
    std::vector<std::vector<float>> parameters_;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> offers_;
    std::vector<float> buffer_;
    bool busy_ = false;
    bool collected_ = false;

  public:
    fabric::ServerNode node;
};

// Server, a tree of switches of a given fan-in, workers.
class Job {
  public:
    Job(const Wiring& wiring, std::uint32_t fan_in, std::uint64_t seed, bool multicast = false)
        : wiring_(wiring), network(seed) {
        std::vector<std::uint16_t> level(wiring.workers);
        std::iota(level.begin(), level.end(), kWorkers);
        std::map<std::uint16_t, std::pair<std::uint16_t, std::uint16_t>> parents;  // number -> parent, child number
        std::uint16_t next = kSwitches;
        while (level.size() > 1 || next == kSwitches) {
            std::vector<std::uint16_t> above;
            for (std::size_t first = 0; first < level.size(); first += fan_in) {
                std::vector<std::uint16_t> children;
                for (std::size_t i = first; i < std::min(level.size(), first + fan_in); ++i) {
                    parents[level[i]] = {next, static_cast<std::uint16_t>(children.size())};
                    children.push_back(level[i]);
                }
                switch_children_[next] = children;
                above.push_back(next++);
            }
            level = above;
        }
        parents[level[0]] = {kServer, 0};
        parents_ = parents;
        std::vector<std::uint16_t> members(wiring.workers);
        std::iota(members.begin(), members.end(), kWorkers);
        network.group(kGroup, members);
        server = std::make_unique<Server>(wiring, address_of(level[0]), multicast ? address_of(kGroup) : Address{});
        network.attach(kServer, &server->node);
        for (const auto& [number, children] : switch_children_) start_switch(number);
        for (std::uint32_t rank = 0; rank < wiring.workers; ++rank) {
            const auto number = static_cast<std::uint16_t>(kWorkers + rank);
            workers.push_back(
                std::make_unique<Worker>(wiring, address_of(parents[number].first), parents[number].second, rank));
            network.attach(number, &workers.back()->node);
        }
    }

    void start_switch(std::uint16_t number) {
        std::vector<Address> children;
        for (const std::uint16_t child : switch_children_[number]) children.push_back(address_of(child));
        const auto [parent, place] = parents_[number];
        switches.erase(number);
        programs_.erase(number);
        wiring_.incarnation = ++incarnations_[number];  // counted as the control plane does
        auto slots = slots_in_kernel(number, {address_of(number), address_of(parent), place, children});
        switches[number] =
            std::make_unique<switching::SwitchNode>(wiring_, address_of(parent), place, children, std::move(slots));
        network.attach(number, switches[number].get());
    }
    [[nodiscard]] std::uint16_t top() const { return switches.rbegin()->first; }

    bool run_step(std::uint64_t step, const std::function<void()>& meanwhile = [] {}) {
        server->start(step);
        for (auto& worker : workers) worker->start(step);
        return network.run(
            [&] {
                server->work();
                meanwhile();
                return server->undelivered == 0 &&
                       std::all_of(workers.begin(), workers.end(), [](auto& worker) { return worker->finished(); });
            },
            60 * kSecond);
    }

    // The sums of one step, compared with what the workers pushed.
    void check_sums(std::uint64_t step) const {
        std::vector<std::uint32_t> expected;
        for (std::uint32_t block = static_cast<std::uint32_t>(wiring_.blocks.size()); block-- > 0;) {
            if (wiring_.blocks[block].trainable) expected.push_back(block);
        }
        REQUIRE(server->sums.size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const auto& [block, sum] = server->sums[i];
            REQUIRE(block == expected[i]);
            double worst = 0;
            for (std::uint64_t element = 0; element < sum.size(); ++element) {
                double exact = 0;
                for (std::uint32_t rank = 0; rank < wiring_.workers; ++rank) {
                    exact += static_cast<double>(gradient_at(step, rank, block, element));
                }
                worst = std::max(worst, std::abs(static_cast<double>(sum[element]) - exact));
            }
            // Magnitudes are below 1: each worker is off by 2^-k at most (kernels/fixed_point.h).
            const std::uint32_t bits =
                wiring_.form == LUWU_FLOAT32 ? 22 : kernels::fixed_bits(wiring_.fixed_form(), wiring_.workers);
            CHECK(worst <= wiring_.workers * std::ldexp(1.0, -static_cast<int>(bits)) + 1e-6);
        }
    }

  private:
    // Slots in the kernel, if the environment asks for them. Packets then go to the program from the node.
    std::unique_ptr<switching::SlotTable> slots_in_kernel(std::uint16_t number, const switching::XdpPlace& place) {
        const bool above_others = switch_children_[number][0] < kWorkers;
        if (!switch_in_kernel(above_others) || wiring_.form == LUWU_FLOAT32) return nullptr;
        programs_[number] = std::make_unique<switching::XdpProgram>(wiring_, place);
        return switching::make_kernel_slots(*programs_[number]);
    }
    std::map<std::uint16_t, std::unique_ptr<switching::XdpProgram>> programs_;
    std::map<std::uint16_t, std::uint32_t> incarnations_;

  public:
    Wiring wiring_;
    SimulatedNetwork network;
    std::map<std::uint16_t, std::vector<std::uint16_t>> switch_children_;
    std::map<std::uint16_t, std::pair<std::uint16_t, std::uint16_t>> parents_;
    std::map<std::uint16_t, std::unique_ptr<switching::SwitchNode>> switches;
    std::unique_ptr<Server> server;
    std::vector<std::unique_ptr<Worker>> workers;
};

using Sums = std::vector<std::pair<std::uint32_t, std::vector<float>>>;

inline bool same_bits(const Sums& left, const Sums& right) {
    return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin(), [](auto& a, auto& b) {
               return a.first == b.first && a.second.size() == b.second.size() &&
                      std::memcmp(a.second.data(), b.second.data(), a.second.size() * sizeof(float)) == 0;
           });
}

inline Sums sums_of(const Wiring& wiring, std::uint32_t fan_in, const Damage& damage, std::uint64_t seed,
                    bool multicast = false) {
    Job job(wiring, fan_in, seed, multicast);
    job.network.damage(damage);
    Sums all;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        REQUIRE(job.run_step(step));
        CHECK(job.server->broken.empty());
        job.check_sums(step);
        all.insert(all.end(), job.server->sums.begin(), job.server->sums.end());
    }
    return all;
}

}  // namespace luwu::test::simulated
