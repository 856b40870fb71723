// The network protocol's nodes over a simulated network, against a model of what they are for: every pull gives the
// server's parameters, every push is in the sum once, in order, whatever the network does.
#include <doctest/doctest.h>

#include <algorithm>

#include "simulated_job.h"

namespace luwu::test::simulated {

TEST_CASE("every pull and every push arrives once, for any number of workers and form") {
    for (const luwu_form form : {LUWU_INT32, LUWU_INT16, LUWU_FLOAT32}) {
        for (const std::uint32_t workers : {1U, 2U, 5U}) {
            CAPTURE(workers);
            CAPTURE(static_cast<int>(form));
            sums_of(small_wiring(workers, form), 8, {}, 1);
        }
    }
}

TEST_CASE("loss, duplicates, reordering and damage change no bit, in any tree") {
    const Wiring wiring = small_wiring(6);
    const Sums undisturbed = sums_of(wiring, 8, {}, 1);
    const Damage damages[] = {{0.02, 0, 0, 0}, {0, 0.1, 0, 0}, {0, 0, 0.2, 0}, {0, 0, 0, 0.05}, {0.1, 0.1, 0.1, 0.05}};
    std::uint64_t seed = 2;
    for (const Damage& damage : damages) {
        for (const std::uint32_t fan_in : {8U, 3U, 2U}) {
            CAPTURE(fan_in);
            CAPTURE(damage.loss);
            CHECK(same_bits(undisturbed, sums_of(wiring, fan_in, damage, seed++)));
        }
    }
}

TEST_CASE("a switch that is started again in the middle loses nothing") {
    const Wiring wiring = small_wiring(4);
    const Sums undisturbed = sums_of(wiring, 2, {}, 1);
    Job job(wiring, 2, 9);
    job.network.damage({0.01, 0, 0, 0});
    Sums all;
    std::uint64_t rounds = 0;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        REQUIRE(job.run_step(step, [&] {
            if (++rounds % 500 == 0) job.start_switch(static_cast<std::uint16_t>(kSwitches + rounds / 500 % 3));
        }));
        all.insert(all.end(), job.server->sums.begin(), job.server->sums.end());
    }
    CHECK(rounds > 1000);
    CHECK(same_bits(undisturbed, all));
}

TEST_CASE("a switch whose host's clock starts anew, or is another one, is heard at once and loses nothing") {
    constexpr Time kDays = 5 * 24 * 3600 * kSecond;
    const Wiring wiring = small_wiring(4);
    const Sums undisturbed = sums_of(wiring, 2, {}, 1);
    for (const Time reads : {kMillisecond, 2 * kDays, 9 * kDays}) {  // the clock at the second start
        CAPTURE(reads);
        Job job(wiring, 2, 9);
        for (const auto& [number, children] : job.switch_children_) job.network.start_clock(number, kDays);
        Sums all;
        std::uint64_t rounds = 0;
        const Time began = job.network.now();
        for (std::uint64_t step = 1; step <= 3; ++step) {
            REQUIRE(job.run_step(step, [&] {
                if (++rounds % 300 != 0) return;
                const auto number = static_cast<std::uint16_t>(kSwitches + rounds / 300 % 3);
                job.network.start_clock(number, reads);
                job.start_switch(number);
            }));
            all.insert(all.end(), job.server->sums.begin(), job.server->sums.end());
        }
        CHECK(rounds > 900);
        CHECK(same_bits(undisturbed, all));
        CHECK(job.network.now() - began < 5 * kSecond);
    }
}

TEST_CASE("a link that is cut for ten seconds loses nothing") {
    const Wiring wiring = small_wiring(3);
    const Sums undisturbed = sums_of(wiring, 8, {}, 1);
    Job job(wiring, 8, 5);
    Sums all;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        const Time begin = job.network.now();
        REQUIRE(job.run_step(step, [&] {
            const Time spent = job.network.now() - begin;
            job.network.cut(kWorkers + 1, step == 2 && spent > kMillisecond && spent < 10 * kSecond);
        }));
        all.insert(all.end(), job.server->sums.begin(), job.server->sums.end());
    }
    CHECK(job.network.now() > 10 * kSecond);
    CHECK(same_bits(undisturbed, all));
}

TEST_CASE("the server's packets are as many whatever the number of workers") {
    std::map<std::uint32_t, std::uint64_t> packets;
    for (const std::uint32_t workers : {1U, 2U, 8U}) {
        Job job(small_wiring(workers), 4, 1);
        std::uint64_t data = 0;
        job.network.tap = [&data](std::uint16_t from, std::uint16_t to, std::span<const std::byte> bytes) {
            if (from != kServer && to != kServer) return;
            data += std::to_integer<int>(bytes[offsetof(fabric::Head, kind)]) != LUWU_HEARTBEAT;
        };
        REQUIRE(job.run_step(1));
        packets[workers] = data;
    }
    CHECK(packets[2] == packets[1]);
    CHECK(packets[8] == packets[1]);
}

TEST_CASE("a new epoch interrupts the workers, drops what was under way and goes on") {
    Job job(small_wiring(3), 2, 3);
    REQUIRE(job.run_step(1));
    bool begun = false;
    REQUIRE(job.run_step(2, [&] {
        if (begun || job.workers[0]->pushes_done < 1) return;
        begun = true;
        job.server->begin_epoch();
    }));
    for (auto& worker : job.workers) {
        CHECK(worker->was_interrupted());
        CHECK(worker->node.epoch() == 2);
        worker->forget_interruption();
    }
    REQUIRE(job.run_step(3));
    job.check_sums(3);
}

TEST_CASE("parameters that go to a group leave the server once, and reach every worker whatever is lost") {
    const Wiring wiring = small_wiring(5);
    const Sums undisturbed = sums_of(wiring, 8, {}, 1);
    std::uint64_t packets = 0;
    for (const auto& block : wiring.blocks) packets += 2 * wiring.packets(block.elements * sizeof(float));
    for (const std::uint32_t fan_in : {8U, 2U}) {
        Job job(wiring, fan_in, 4, true);
        std::map<std::uint16_t, std::uint64_t> parameters;  // by where they went
        job.network.tap = [&](std::uint16_t, std::uint16_t to, std::span<const std::byte> bytes) {
            parameters[to] += std::to_integer<int>(bytes[offsetof(fabric::Head, kind)]) == LUWU_PARAMETERS;
        };
        REQUIRE(job.run_step(1));
        CHECK(parameters[kGroup] == packets);
        parameters.erase(kGroup);
        CHECK(std::all_of(parameters.begin(), parameters.end(), [](auto& entry) { return entry.second == 0; }));
    }
    std::uint64_t seed = 20;
    for (const Damage& damage : {Damage{0.05, 0, 0, 0}, Damage{0.1, 0.1, 0.1, 0.05}}) {
        for (const std::uint32_t fan_in : {8U, 2U}) {
            CHECK(same_bits(undisturbed, sums_of(wiring, fan_in, damage, seed++, true)));
        }
    }
}

TEST_CASE("workers that pull different blocks are told apart") {
    const Wiring wiring = small_wiring(2);
    Job job(wiring, 8, 3);
    job.server->start(1);
    std::vector<std::byte> memory(wiring.parameter_bytes(3));
    job.workers[0]->node.pull(0, memory.data());
    job.workers[1]->node.pull(1, memory.data());
    REQUIRE(job.network.run([&] { return !job.server->broken.empty(); }, kSecond));
    CHECK(job.server->broken.find("different blocks") != std::string::npos);
}

}  // namespace luwu::test::simulated
