// Workers, a tree of switches and an aggregator over real sockets of this host: the nodes of test_protocol.cc run by
// their loops.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <memory>

#include "fabric/core/address.h"
#include "fabric/udp/udp_port.h"
#include "switch/udp_switch.h"
#include "udp_aggregator.h"

namespace luwu::test {

namespace {

using bench::UdpAggregator;
using fabric::Address;
using fabric::UdpPort;
using fabric::Wiring;
using switching::UdpSwitch;

Wiring wiring_of(std::uint32_t workers, luwu_form form) {
    Wiring wiring;
    wiring.job = 3;
    wiring.key = 4;
    wiring.epoch = 1;
    wiring.workers = workers;
    wiring.payload_bytes = 1408;
    wiring.form = form;
    wiring.window = {512, 64, 64, 512};
    wiring.blocks = {{100'000, true}, {5'000, true}, {250'001, true}};
    wiring.timing = {500'000, 20'000'000, 50'000'000, 1'000'000'000, 5'000'000};
    return wiring;
}

Address local() { return fabric::parse_address("127.0.0.1", 0); }

float gradient_at(std::uint32_t worker, std::uint64_t round, std::uint64_t element) {
    return std::cos(static_cast<float>(element % 977) + static_cast<float>(worker * 3 + round));
}

struct Worker {
    explicit Worker(std::uint32_t worker)
        : rank(worker), port(fabric::UdpSocket(local()), {[](const auto&) {}, [](auto) {}}) {}

    void push(std::uint32_t block, std::uint64_t round, const Wiring& wiring) {
        auto& gradient = gradients.emplace_back(wiring.blocks[block].elements);
        for (std::uint64_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_at(rank, round, i);
        const auto* bytes = reinterpret_cast<const std::byte*>(gradient.data());
        auto exponents = fabric::exponents_of(bytes, kernels::Dtype::float32, gradient.size());
        port.call([&] { port.push(block, bytes, std::move(exponents), [](bool) {}); });
    }
    std::future<bool> pull(std::uint32_t block, std::vector<float>& into) {
        auto done = std::make_shared<std::promise<bool>>();
        auto result = done->get_future();
        port.call([&] {
            port.pull({block, std::as_writable_bytes(std::span(into)), [done](bool ok) { done->set_value(ok); }});
        });
        return result;
    }

    std::uint32_t rank;
    std::deque<std::vector<float>> gradients;
    UdpPort port;
};

// The means of several rounds, as worker 0 pulled them; every worker must have pulled the same.
std::vector<std::vector<float>> means_of(std::uint32_t workers, luwu_form form, bool two_levels) {
    const Wiring wiring = wiring_of(workers, form);
    UdpAggregator server(local(), {});
    UdpSwitch top(local());
    UdpSwitch racks[2] = {UdpSwitch(local()), UdpSwitch(local())};
    std::vector<std::unique_ptr<Worker>> all;
    for (std::uint32_t rank = 0; rank < workers; ++rank) all.push_back(std::make_unique<Worker>(rank));
    std::vector<Address> children[2];
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
        const std::uint32_t rack = two_levels ? rank % 2 : 0;
        const auto child = static_cast<std::uint16_t>(children[rack].size());
        children[rack].push_back(all[rank]->port.bound());
        all[rank]->port.start(wiring, two_levels ? racks[rack].bound() : top.bound(), child, {});
    }
    if (two_levels) {
        top.start(wiring, server.bound(), 0, {racks[0].bound(), racks[1].bound()});
        for (std::uint16_t rack = 0; rack < 2; ++rack) {
            racks[rack].start(wiring, top.bound(), rack, children[rack]);
        }
    } else {
        top.start(wiring, server.bound(), 0, children[0]);
    }
    server.start(wiring, top.bound(), {}, true);
    std::vector<std::vector<float>> means;
    for (std::uint64_t round = 0; round < 3; ++round) {
        std::vector<std::vector<std::vector<float>>> values(workers);
        std::vector<std::future<bool>> pulls;
        for (auto& worker : all) {
            auto& mine = values[worker->rank];
            for (std::uint32_t block = 0; block < wiring.blocks.size(); ++block) {
                mine.emplace_back(wiring.blocks[block].elements);
            }
            for (std::uint32_t block = 0; block < wiring.blocks.size(); ++block) worker->push(block, round, wiring);
            for (std::uint32_t block = 0; block < wiring.blocks.size(); ++block) {
                pulls.push_back(worker->pull(block, mine[block]));
            }
        }
        for (auto& pull : pulls) REQUIRE(pull.get());
        for (const auto& mine : values) CHECK(mine == values[0]);
        for (auto& mean : values[0]) means.push_back(std::move(mean));
    }
    return means;
}

}  // namespace

TEST_CASE("means over sockets are right, and the same bits through one switch and through a tree") {
    for (const luwu_form form : {LUWU_INT32, LUWU_INT16}) {
        const auto flat = means_of(4, form, false);
        double worst = 0;
        for (std::uint64_t i = 0; i < flat[0].size(); ++i) {
            double mean = 0;
            for (std::uint32_t rank = 0; rank < 4; ++rank) mean += static_cast<double>(gradient_at(rank, 0, i)) / 4;
            worst = std::max(worst, std::abs(static_cast<double>(flat[0][i]) - mean));
        }
        CHECK(worst < (form == LUWU_INT32 ? 1e-6 : 2e-4));
        CHECK(flat == means_of(4, form, true));
    }
}

}  // namespace luwu::test
