// A job through queues that are too short to show in the times of heartbeats, and through queues that mark packets.
#include <doctest/doctest.h>

#include "simulated_job.h"

namespace luwu::test {

namespace {

using namespace simulated;

constexpr double kFrames = 256;

Wiring full_frames(std::uint32_t workers) {
    Wiring wiring = small_wiring(workers);
    wiring.payload_bytes = 1408;
    wiring.window = {4096, 64, 256, 4096};
    wiring.blocks = {{1 << 17, true}, {1 << 17, true}, {1 << 17, true}, {1 << 17, true}};
    wiring.timing.heartbeat = kMillisecond;
    return wiring;
}

struct Sent {
    double again = 0;    // share of the packets of worker and server
    double seconds = 0;  // of a step
    double frames = 0;   // in the longest queue
};

// The last steps of a job, after some in which the senders find the rate.
Sent last_steps(const Speed& speed, const Damage& damage) {
    constexpr std::uint64_t kFinding = 3;
    constexpr std::uint64_t kCounted = 3;
    Job job(full_frames(2), 2, 5);
    job.network.limit(speed);
    job.network.damage(damage);
    const auto counts = [&job] {
        const auto worker = job.workers[0]->node.stats();
        const auto server = job.server->node.stats();
        return std::pair(static_cast<double>(worker.resent + server.resent),
                         static_cast<double>(worker.packets_out + server.packets_out));
    };
    for (std::uint64_t step = 1; step <= kFinding; ++step) REQUIRE(job.run_step(step));
    const auto [again, all] = counts();
    const Time began = job.network.now();
    (void)job.network.take_longest_queue();
    for (std::uint64_t step = 1; step <= kCounted; ++step) REQUIRE(job.run_step(kFinding + step));
    CHECK(job.server->broken.empty());
    const auto [again_then, all_then] = counts();
    return {(again_then - again) / (all_then - all), static_cast<double>(job.network.now() - began) / 1e9 / kCounted,
            job.network.take_longest_queue()};
}

}  // namespace

TEST_CASE("queues of 256 frames: hardly anything is sent again, and the rate is that of deep queues") {
    for (const double rate : {12.5e6, 125e6}) {
        CAPTURE(rate);
        const Sent deep = last_steps({rate}, {});
        const Sent shallow = last_steps({rate, kFrames}, {});
        CHECK(deep.again < 0.001);
        CHECK(shallow.again < 0.03);
        CHECK(shallow.seconds < 1.3 * deep.seconds);
    }
}

TEST_CASE("a queue that marks packets stays short, loses none, and the rate is that of deep queues") {
    constexpr double kMarksBeyond = 65;  // packets, as RFC 8257 has it for 10 Gb/s
    for (const double rate : {12.5e6, 125e6}) {
        CAPTURE(rate);
        const Sent deep = last_steps({rate}, {});
        const Sent marking = last_steps({rate, 1e9, kMarksBeyond}, {});
        CHECK(marking.again < 0.001);
        CHECK(marking.seconds < 1.1 * deep.seconds);
        if (rate > 100e6) CHECK(marking.frames < deep.frames / 2);
    }
}

TEST_CASE("damaged packets do not slow a sender down more than sending them again does") {
    const Sent whole = last_steps({125e6}, {});
    const Sent damaged = last_steps({125e6}, {.loss = 0.01});
    CHECK(damaged.again > 0.01);
    CHECK(damaged.seconds < 1.5 * whole.seconds);
}

}  // namespace luwu::test
