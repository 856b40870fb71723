// Duties of every transport, as one suite: the same cases over shared memory, TCP and UDP. They differ for good
// reasons:
//
//   what                            shared memory       TCP                 UDP
//   sum of gradients                fp32, by rank       fp32, by rank       fixed point: off by N * 2^-k * A at most
//   pulls and pushes of a step      any order           any order           the same order at all workers
//   a push is done when             the update is made  the server has it   the server has it from all workers
//   a gradient of one worker alone  found at the vote   found at the vote   found at the vote, where all have voted;
//   the
//                                                                           worker itself waits for the others till
//                                                                           then
//   a step that is given up         its pulls go on     its pulls go on     a new epoch; its pulls go on over TCP
//   bytes that the server counts    of every worker     of every worker     of one: switches copy and add
//   begin and vote                  a request           control plane       control plane
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>

#include "conformance.h"
#include "fabric/core/clock.h"
#include "kernels/fixed_point.h"

using namespace luwu;
using luwu::test::Dtypes;
using luwu::test::JobOptions;
using luwu::test::kGroups;
using luwu::test::make_job;
using luwu::test::Scratch;
using luwu::test::TestJob;
using luwu::test::Transport;

namespace {

constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr auto kHalf = kernels::Dtype::float16;
constexpr auto kFull = kernels::Dtype::float32;
constexpr std::chrono::milliseconds kMoment{20};

using Contents = std::vector<test::BlockContents>;

// Contents of the store after `steps` committed steps 1, 2...
Contents expected(Transport transport, const JobOptions& options, std::uint64_t steps) {
    return transport == Transport::udp ? test::expected_over_udp(options.dtype, options.workers, steps, options.form)
                                       : test::expected_contents(options.dtype, options.workers, steps);
}

Contents stored(const JobOptions& options) { return test::stored_contents({options.folder}, options.dtype); }

// Largest error of the first moments, which are linear in the gradients.
double worst_moment(const Contents& left, const Contents& right, bool low) {
    double worst = 0;
    for (std::size_t block = 0; block < left.size(); ++block) {
        if (left[block].states.empty()) continue;
        const auto& a = left[block].states[low ? 1 : 0];
        const auto& b = right[block].states[low ? 1 : 0];
        for (std::size_t i = 0; i < a.size(); ++i) {
            worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
        }
    }
    return worst;
}

// Runs a case over every transport; the job is closed before the store is looked at. `steps`: those that were
// committed, or none to compare.
void over_all(JobOptions options, std::uint64_t steps, const std::function<void(TestJob& job, Transport)>& run) {
    for (const Transport transport : luwu::test::transports()) {
        CAPTURE(name_of(transport));
        const Scratch scratch;
        options.folder = scratch.folder();
        {
            const auto job = make_job(transport, options);
            job->initialise();
            run(*job, transport);
        }
        if (steps > 0) CHECK(test::equal(stored(options), expected(transport, options, steps)));
    }
}

void over_all(std::uint32_t workers, std::uint64_t steps, const std::function<void(TestJob& job, Transport)>& run) {
    JobOptions options;
    options.workers = workers;
    over_all(options, steps, run);
}

Error failure_of_step(TestJob& job, std::uint32_t rank) {
    return test::failure_of([&] {
        job.begin(rank, kGroups);
        job.vote(rank, false);
        (void)job.wait_outcome(rank);
    });
}

// Makes a step without pulls, and does not wait for the last pushes, like a worker.
std::int64_t push_all(TestJob& job, std::uint32_t rank, std::uint64_t step) {
    std::vector<fabric::Handle> sent;
    job.begin(rank, kGroups);
    for (auto block = static_cast<std::uint32_t>(job.shape().blocks.size()); block-- > 0;) {
        if (!job.shape().blocks[block].trainable) continue;
        if (sent.size() > 1) test::finish(job.endpoint(rank), sent[sent.size() - 2]);
        sent.push_back(job.push(rank, step, block));
    }
    job.vote(rank, false);
    return job.wait_outcome(rank);
}

bool names(const Error& error, const std::string& words) {
    const bool found = std::string(error.what()).find(words) != std::string::npos;
    if (!found) MESSAGE("it says: " << std::string(error.what()));
    return found;
}

Contents train_over_udp(const JobOptions& options, std::uint64_t steps) {
    {
        const auto job = make_job(Transport::udp, options);
        job->initialise();
        job->train(1, steps);
    }
    return stored(options);
}

}  // namespace

TEST_CASE("workers train, and the committed store holds what they should have learnt") {
    const auto all = test::variants({Dtypes(kLow), Dtypes(kFull), Dtypes(kHalf), Dtypes(kHalf, kFull)});
    for (const Dtypes& dtype : all) {
        const bool tight = dtype.odd != kFull;
        for (const std::uint32_t workers : {1U, 2U, 4U}) {
            CAPTURE(workers);
            JobOptions options;
            options.dtype = dtype;
            options.workers = workers;
            if (tight) options.memory_bytes = test::Rig::minimum_bytes(dtype, workers + 1);
            over_all(options, 3, [](TestJob& job, Transport) {
                job.train(1, 3);
                CHECK(job.core().stats().step == 3);
                CHECK_FALSE(job.core().failure().has_value());
            });
        }
    }
}

TEST_CASE("over UDP every tree and every run gives the same bits, as near the exact sums as int32 is") {
    const Scratch scratch;
    JobOptions options;
    for (const std::uint32_t workers : {1U, 4U}) {
        CAPTURE(workers);
        options.workers = workers;
        options.folder = scratch.folder("first" + std::to_string(workers));
        options.fan_in = 8;
        const Contents first = train_over_udp(options, 3);
        for (const std::uint32_t fan_in : {workers == 1 ? 0U : 3U, workers == 1 ? 1U : 2U, 8U}) {
            CAPTURE(fan_in);
            options.fan_in = fan_in;
            options.folder = scratch.folder(std::to_string(workers) + "of" + std::to_string(fan_in));
            CHECK(test::equal(first, train_over_udp(options, 3)));
            if (fan_in == 1) break;  // a chain of one switch is the first tree
        }
        // Gradients are below 1, a mean's error is one worker's, and moments add up to no more than that; floats round.
        const auto bits = static_cast<int>(kernels::fixed_bits(kernels::FixedForm::int32, workers));
        const double worst = worst_moment(first, test::expected_contents(kFull, workers, 3), false);
        CHECK(worst <= std::ldexp(1.0, -bits) + std::ldexp(1.0, -23));
    }
}

TEST_CASE("first values are there for every worker, once") {
    for (const Dtypes& dtype : {Dtypes(kLow), Dtypes(kFull, kHalf)}) {
        JobOptions options;
        options.dtype = dtype;
        over_all(options, 0, [](TestJob& job, Transport) {
            CHECK(job.core().initialised());
            for (std::uint32_t rank = 0; rank < job.workers(); ++rank) {
                for (std::uint32_t block = 0; block < job.shape().blocks.size(); ++block) {
                    CHECK(job.read(rank, block) == test::first_parameters(job.shape(), block));
                }
            }
            const Error twice = test::failure_of([&] {
                test::finish(job.endpoint(1), job.endpoint(1).initialise(0, 0));
                test::finish(job.endpoint(1), job.endpoint(1).finish_initialise());
            });
            CHECK(twice.kind() == ErrorKind::order);
            CHECK(names(twice, "initialised already"));
        });
    }
}

TEST_CASE("a step that one worker rolls back, or all do, leaves no trace") {
    over_all(3, 3, [](TestJob& job, Transport) {
        job.train(1, 1);
        for (std::uint32_t who = 0; who < 3; ++who) {
            job.all([&](std::uint32_t rank) { CHECK(job.step(rank, 50 + who, rank == who) == 0); });
        }
        job.train(2, 2);
        job.all([&](std::uint32_t rank) { CHECK(job.step(rank, 60, true) == 0); });
        job.train(3, 3);
        CHECK(job.core().stats().rolled_back == 4);
        CHECK(job.core().stats().attempts == 7);
    });
}

TEST_CASE("a step given up in the middle, with blocks pushed and pulls outstanding, leaves no trace") {
    over_all(2, 5, [](TestJob& job, Transport) {
        job.train(1, 1);
        for (std::uint64_t step = 2; step <= 5; ++step) {
            const auto begin_both = [&] {
                job.all([&](std::uint32_t rank) {
                    job.begin(rank, kGroups);
                    for (const std::uint32_t block : {0U, 6U}) (void)job.pull(rank, block);
                    test::finish(job.endpoint(rank), job.push(rank, 70, 6));
                    job.endpoint(rank).release(6);
                });
            };
            begin_both();
            // Worker 1 pushes one more and gives up. Worker 0 waits for a pull, and pushes another block later.
            const auto pull = job.endpoint(0).pull(5);
            const auto push = job.push(1, 70, 4);
            job.endpoint(1).release(0);
            job.vote(1, true);
            test::finish(job.endpoint(0), pull);
            const auto late = job.push(0, 70, 5);
            job.endpoint(0).release(5);
            CHECK(job.read(0, 3).size() == job.shape().blocks[3].elements * sizeof(float));
            job.endpoint(0).release(0);
            job.vote(0, step % 2 == 0);  // all, or one
            for (std::uint32_t rank = 0; rank < 2; ++rank) CHECK(job.wait_outcome(rank) == 0);
            test::finish(job.endpoint(1), push);
            test::finish(job.endpoint(0), late);
            job.train(step, step);
        }
        CHECK_FALSE(job.core().failure().has_value());
    });
}

TEST_CASE("a vote to roll back may overtake gradients that are still arriving") {
    over_all(2, 20, [](TestJob& job, Transport) {
        job.all([&](std::uint32_t rank) {
            for (std::uint64_t step = 1; step <= 20; ++step) {
                job.begin(rank, kGroups);
                const fabric::Handle sent[] = {job.push(rank, 80, 6), job.push(rank, 80, 5)};
                job.vote(rank, true);
                CHECK(job.wait_outcome(rank) == 0);
                for (const fabric::Handle handle : sent) test::finish(job.endpoint(rank), handle);
                CHECK(job.step(rank, step) == 1);
            }
        });
    });
}

TEST_CASE("over UDP, gradients that arrive when their step was given up, and ends, are dropped") {
    const Scratch scratch;
    JobOptions options;
    options.folder = scratch.folder();
    {
        const auto job = make_job(Transport::udp, options);
        job->initialise();
        for (int round = 0; round < 10; ++round) {
            for (std::uint32_t rank = 0; rank < 2; ++rank) job->begin(rank, kGroups);
            // A reply keeps the pipeline's lock, so that votes and gradients queue up, and come in any order then.
            std::promise<void> held;
            std::promise<void> go;
            std::thread holder([&] {
                job->core().read(1, [&](pipeline::Outcome) {
                    held.set_value();
                    go.get_future().wait();
                });
            });
            held.get_future().wait();
            std::vector<fabric::Handle> sent;
            std::vector<std::thread> voters;
            for (std::uint32_t rank = 0; rank < 2; ++rank) {
                sent.push_back(job->push(rank, 80, 6));
                voters.emplace_back([&job, rank] { job->vote(rank, true); });
            }
            for (std::uint32_t rank = 0; rank < 2; ++rank) test::finish(job->endpoint(rank), sent[rank]);
            go.set_value();
            holder.join();
            for (std::thread& voter : voters) voter.join();
            for (std::uint32_t rank = 0; rank < 2; ++rank) CHECK(job->wait_outcome(rank) == 0);
            job->core().release(1);
        }
        job->train(1, 2);
    }
    CHECK(test::equal(stored(options), expected(Transport::udp, options, 2)));
}

TEST_CASE("a worker that comes late to a step which was given up already goes through it") {
    over_all(2, 1, [](TestJob& job, Transport) {
        job.begin(0, kGroups);
        job.vote(0, true);
        CHECK(job.step(1, 9) == 0);
        CHECK(job.wait_outcome(0) == 0);
        job.train(1, 1);
    });
}

TEST_CASE("a worker pulls outside of steps while others wait in theirs") {
    over_all(2, 2, [](TestJob& job, Transport) {
        job.train(1, 1);
        std::thread other([&] { CHECK(job.step(1, 2) == 1); });
        for (int round = 0; round < 2; ++round) {
            for (std::uint32_t block = 0; block < job.shape().blocks.size(); ++block) {
                const auto found = job.read(0, block);
                CHECK((found == test::first_parameters(job.shape(), block)) == !job.shape().blocks[block].trainable);
            }
        }
        CHECK(job.step(0, 2) == 1);
        other.join();
    });
}

TEST_CASE("a step in which a gradient is not finite is rolled back, and the next one counts") {
    for (const auto dtype : {kLow, kFull}) {
        JobOptions options;
        options.dtype = dtype;
        over_all(options, 2, [](TestJob& job, Transport) {
            job.train(1, 1);
            job.all([&](std::uint32_t rank) { CHECK(job.step(rank, 9, false, rank == 1) == pipeline::kNotFinite); });
            job.train(2, 2);
            CHECK(job.core().stats().rolled_back == 1);
        });
    }
}

TEST_CASE("workers that do not do the same are told who and what, all of them") {
    using Act = std::function<void(TestJob & job, Transport transport)>;
    struct Case {
        const char* what;
        std::vector<std::string> words;  // any of them
        Act act;                         // up to both votes
    };
    const auto push_all = [](TestJob& job, std::uint32_t rank, const std::vector<std::uint32_t>& blocks) {
        for (const std::uint32_t block : blocks) (void)job.push(rank, 1, block);
    };
    const auto begin_both = [](TestJob& job) {
        for (std::uint32_t rank = 0; rank < 2; ++rank) job.begin(rank, kGroups);
    };
    const auto vote_both = [](TestJob& job) {
        for (std::uint32_t rank = 0; rank < 2; ++rank) job.vote(rank, false);
    };
    const std::vector<Case> cases{
        {"other hyper-parameters",
         {"worker 1 began"},
         [](TestJob& job, Transport) {
             job.begin(0, kGroups);
             auto other = kGroups;
             other[0][0] *= 2;
             job.begin(1, other);
         }},
        {"another block",
         {"'b5'", "'b4'", "different blocks"},
         [&](TestJob& job, Transport) {
             begin_both(job);
             push_all(job, 0, {6});
             push_all(job, 1, {5});
             vote_both(job);
         }},
        {"fewer blocks",
         {"'b4'", "worker 1 1"},
         [&](TestJob& job, Transport) {
             begin_both(job);
             push_all(job, 0, {6, 5});
             push_all(job, 1, {6});
             vote_both(job);
         }},
        {"the same block twice",
         {"'b5' twice"},
         [&](TestJob& job, Transport) {
             begin_both(job);
             push_all(job, 0, {6, 6});
             push_all(job, 1, {6, 6});
         }},
        {"a vote on no step",
         {"worker 1 ended a step that it had not begun"},
         [](TestJob& job, Transport) {
             job.begin(0, kGroups);
             job.vote(1, false);
         }},
    };
    for (const Case& one : cases) {
        CAPTURE(one.what);
        over_all(2, 0, [&](TestJob& job, Transport transport) {
            const Error first = test::failure_of([&] {
                one.act(job, transport);
                test::wait_until([&] { return job.core().failure().has_value(); });
                throw *job.core().failure();
            });
            CHECK(first.kind() == ErrorKind::order);
            CHECK(std::any_of(one.words.begin(), one.words.end(),
                              [&](auto& words) { return std::string(first.what()).find(words) != std::string::npos; }));
            for (std::uint32_t rank = 0; rank < 2; ++rank) {
                const Error told = test::failure_of([&] { (void)job.pull(rank, 1); });
                CHECK(told.kind() == ErrorKind::order);
                CHECK(std::string(told.what()) == first.what());
            }
        });
    }
}

TEST_CASE("a worker that leaves while others go on fails the run") {
    for (const bool within : {false, true}) {
        CAPTURE(within);
        over_all(2, 0, [&](TestJob& job, Transport) {
            job.train(1, 1);
            if (within) {
                job.begin(0, kGroups);
                job.vote(0, false);
                CHECK_FALSE(job.outcome(0, kMoment).has_value());
            }
            job.leave(1);
            const Error error = within ? test::failure_of([&] { (void)job.wait_outcome(0); }) : failure_of_step(job, 0);
            CHECK(error.kind() == ErrorKind::worker_lost);
            CHECK(names(error, "worker 1 left"));
            CHECK(names(error, "give every worker the same number of batches"));
        });
    }
}

TEST_CASE("a failure of the server, and its end, reach whoever waits") {
    for (const bool closes : {false, true}) {
        CAPTURE(closes);
        over_all(3, 0, [&](TestJob& job, Transport transport) {
            for (std::uint32_t rank = 0; rank < 3; ++rank) job.begin(rank, kGroups);
            job.vote(0, false);
            const auto push = job.push(1, 1, 6);
            // Worker 2 waits for a pull where that waits for others; what it pulled before it may keep.
            const auto waiting = job.endpoint(2).pull(4);
            CHECK_FALSE(job.outcome(0, kMoment).has_value());
            if (transport == Transport::udp) CHECK_FALSE(job.endpoint(2).done(waiting));
            if (transport != Transport::udp) test::finish(job.endpoint(2), waiting);
            if (closes) {
                job.close_server();
            } else {
                job.core().fail(Error(ErrorKind::worker_lost, "worker 7 is lost"));
                job.core().fail(Error(ErrorKind::server, "later"));
            }
            const auto told = [&](const std::function<void()>& act) {
                const Error error = test::failure_of(act);
                CHECK(error.kind() == (closes ? ErrorKind::server : ErrorKind::worker_lost));
                CHECK(std::string(error.what()) == (closes ? "the server was closed" : "worker 7 is lost"));
            };
            if (!closes) told([&] { (void)job.wait_outcome(0); });
            if (transport != Transport::tcp) told([&] { test::finish(job.endpoint(1), push); });
            if (transport == Transport::udp) told([&] { test::finish(job.endpoint(2), waiting); });
            for (std::uint32_t rank = 0; rank < 3; ++rank) {
                told([&] { (void)job.pull(rank, 5); });
                told([&] { test::finish(job.endpoint(rank), job.push(rank, 1, 3)); });
            }
        });
    }
}

TEST_CASE("a server that is closed in the middle of a step ends, and the store stands where it was") {
    for (int round = 0; round < 4; ++round) {
        over_all(2, 1, [round](TestJob& job, Transport) {
            job.train(1, 1);
            job.all([&](std::uint32_t rank) {
                job.begin(rank, kGroups);
                (void)job.endpoint(rank).pull(1);
                for (const std::uint32_t block : {6U, 5U, 4U}) (void)job.push(rank, 90, block);
                if (round % 2 == 0) (void)job.endpoint(rank).wait(job.endpoint(rank).pull(2), kMoment);
            });
            job.close_server();
        });
    }
}

TEST_CASE("at the end of a step its bytes are counted, and its time once, though nobody waited for the last pushes") {
    // Makes more steps than a ring has places for requests.
    constexpr std::uint64_t kSteps = 60;
    over_all(2, kSteps, [](TestJob& job, Transport) {
        std::uint64_t bytes = 0;
        for (const store::BlockShape& block : job.shape().blocks) bytes += block.trainable ? block.bytes() : 0;
        job.all([&](std::uint32_t rank) {
            fabric::Endpoint& mine = job.endpoint(rank);
            const auto first = mine.stats();
            for (std::uint64_t step = 1; step <= kSteps; ++step) {
                const std::uint64_t began = fabric::monotonic_ns();
                const auto before = mine.stats();
                CHECK(push_all(job, rank, step) == 1);
                const auto after = mine.stats();
                CHECK(after.bytes_pushed - first.bytes_pushed == step * bytes);
                CHECK(after.bytes_pulled == first.bytes_pulled);
                const std::uint64_t busy = after.busy_nanoseconds - before.busy_nanoseconds;
                CHECK(busy > 0);
                CHECK(busy <= fabric::monotonic_ns() - began);
                CHECK(after.wait_nanoseconds - before.wait_nanoseconds <= busy);
            }
        });
    });
}

TEST_CASE("handles tell when they are done, once and again, and wrong ones are named") {
    over_all(1, 0, [](TestJob& job, Transport transport) {
        fabric::Endpoint& mine = job.endpoint(0);
        job.begin(0, kGroups);
        const auto pull = mine.pull(2);
        const auto offset = test::finish(mine, pull);
        CHECK(mine.done(pull));
        CHECK(test::finish(mine, pull) == offset);
        CHECK(test::finish(mine, mine.pull(2)) == offset);  // held twice
        mine.release(2);
        mine.release(2);
        CHECK(test::failure_of([&] { mine.release(2); }).kind() == ErrorKind::order);
        const auto push = job.push(0, 1, 6);
        test::finish(mine, push);
        CHECK(mine.done(push));
        const auto stats = mine.stats();
        CHECK(stats.bytes_pushed == job.shape().blocks[6].bytes());
        CHECK(stats.bytes_pulled == 2 * job.shape().blocks[2].bytes());
        CHECK(stats.busy_nanoseconds > 0);
        CHECK(stats.wait_nanoseconds <= stats.busy_nanoseconds);
        test::wait_until([&] { return job.core().stats().bytes_pushed > 0; });
        CHECK(job.core().stats().bytes_pushed == job.shape().blocks[6].elements * sizeof(float));
        CHECK(job.core().stats().pulls == (transport == Transport::shared_memory ? 2 : 1));
        const Error unknown = test::failure_of([&] { test::finish(mine, mine.pull(99)); });
        CHECK(unknown.kind() == ErrorKind::invalid);
        CHECK(names(unknown, "block 99 of 8"));
    });
    over_all(1, 0, [](TestJob& job, Transport) {
        job.begin(0, kGroups);
        const Error frozen = test::failure_of([&] { test::finish(job.endpoint(0), job.endpoint(0).push(7, 0)); });
        CHECK(frozen.kind() == ErrorKind::invalid);
        CHECK(names(frozen, "'frozen'"));
    });
}

TEST_CASE("nobody waits for the end of a step that it has not voted on") {
    over_all(2, 2, [](TestJob& job, Transport) {
        job.train(1, 1);
        for (std::uint32_t rank = 0; rank < 2; ++rank) CHECK(job.outcome(rank, kMoment) == 1);  // the last one's
        job.train(2, 2);
    });
    for (const Transport transport : {Transport::tcp, Transport::udp}) {  // in shared memory, a vote is a handle
        const Scratch scratch;
        JobOptions options;
        options.folder = scratch.folder();
        const auto job = make_job(transport, options);
        CHECK(test::failure_of([&] { (void)job->outcome(1, kMoment); }).kind() == ErrorKind::order);
    }
}
