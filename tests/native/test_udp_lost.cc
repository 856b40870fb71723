// A worker is lost over UDP at every moment of a step, and another one takes its place below the same switch.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "conformance.h"
#include "step/ending.h"

namespace luwu::test {

namespace {

constexpr std::uint64_t kSteps = 4;
constexpr std::uint64_t kLostIn = 2;

// The lost worker's part of the step: as many pulls as `pulls`, in the order of TestJob::step, none of which it waits
// for in the end; the others may never make theirs.
void begin_and_pull(TestJob& job, std::uint32_t rank, std::uint32_t pulls) {
    job.begin(rank, kGroups);
    for (std::uint32_t block = 0; block < pulls; ++block) {
        if (block + 1 < pulls) {
            (void)job.pull(rank, block);
        } else {
            (void)job.endpoint(rank).pull(block);
        }
    }
}

// The other workers make a step each, in threads, while `lost` does its part and is lost. Returns how the steps ended.
std::vector<std::int64_t> lose_within(UdpTestJob& job, std::uint32_t lost, std::uint32_t pulls) {
    std::vector<std::int64_t> ends(job.workers(), step::kVoid);
    std::vector<std::thread> others;
    for (std::uint32_t rank = 0; rank < job.workers(); ++rank) {
        if (rank != lost) others.emplace_back([&, rank] { ends[rank] = job.step(rank, kLostIn); });
    }
    begin_and_pull(job, lost, pulls);
    job.lose(lost);
    for (std::thread& other : others) other.join();
    return ends;
}

}  // namespace

TEST_CASE("over UDP another worker takes a lost one's place, and the bits are those of an undisturbed job") {
    struct Tree {
        std::uint32_t workers;
        std::uint32_t fan_in;
    };
    for (const Tree& tree : variants<Tree>({{3, 8}, {4, 2}})) {
        const std::uint32_t workers = tree.workers;
        for (const std::uint32_t pulls : {0U, 1U, 3U}) {
            CAPTURE(workers);
            CAPTURE(pulls);
            const Scratch scratch;
            JobOptions options;
            options.folder = scratch.folder();
            options.workers = workers;
            options.fan_in = tree.fan_in;
            {
                const auto job = make_udp_job(options);
                job->initialise();
                job->train(1, kLostIn - 1);
                const std::uint32_t lost = pulls % workers;
                CHECK(lose_within(*job, lost, pulls) == std::vector<std::int64_t>(workers, step::kVoid));
                job->join(lost);
                job->train(kLostIn, kSteps);
            }
            CHECK(equal(stored_contents({options.folder}, options.dtype),
                        expected_over_udp(options.dtype, workers, kSteps)));
        }
    }
}

TEST_CASE("over UDP a worker may be lost and replaced between two steps, again and again") {
    const Scratch scratch;
    JobOptions options;
    options.folder = scratch.folder();
    {
        const auto job = make_udp_job(options);
        job->initialise();
        for (std::uint64_t step = 1; step <= kSteps; ++step) {
            job->train(step, step);
            const auto lost = static_cast<std::uint32_t>(step % options.workers);
            job->lose(lost);
            job->join(lost);
        }
    }
    CHECK(equal(stored_contents({options.folder}, options.dtype),
                expected_over_udp(options.dtype, options.workers, kSteps)));
}

}  // namespace luwu::test
