#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "failing_engine.h"
#include "schedule/read_ahead.h"
#include "support.h"

using namespace luwu;
using luwu::test::Dtypes;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr auto kHalf = kernels::Dtype::float16;
constexpr std::uint64_t kPlenty = 1U << 28;

void flip_byte(const std::string& path, std::uint64_t offset) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    REQUIRE(pread(file, &byte, 1, static_cast<off_t>(offset)) == 1);
    byte = static_cast<char>(byte ^ 1);
    REQUIRE(pwrite(file, &byte, 1, static_cast<off_t>(offset)) == 1);
    close(file);
}

}  // namespace

TEST_CASE("every optimizer out of core equals itself in memory, bit for bit, also after a roll-back and a restart") {
    for (const kernels::Optimizer* const optimizer : kernels::kOptimizers) {
        for (const auto dtype : {kFloat, kLow, kHalf}) {
            CAPTURE(std::string(optimizer->name));
            CAPTURE(static_cast<int>(dtype));
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            const std::uint64_t minimum = Rig::minimum_bytes(dtype, 2, *optimizer);
            {
                Rig rig(folders, dtype, 2, minimum, store::OpenMode::create, store::make_io_engine, false, *optimizer);
                rig.initialise();
                CHECK(rig.run_all(1) == 1);
                CHECK(rig.run_all(2, true) == pipeline::kNotFinite);
                CHECK(rig.run_all(2) == 1);
            }
            Rig rig(folders, dtype, 2, kPlenty, store::OpenMode::open, store::make_io_engine, false, *optimizer);
            CHECK(rig.run_all(3) == 1);
            CHECK(rig.run_all(4) == 1);
            CHECK(test::equal(test::stored_contents(folders, dtype, *optimizer),
                              test::expected_contents(dtype, 2, 4, {}, *optimizer)));
        }
    }
}

TEST_CASE("training out of core equals training in memory, bit for bit, whatever the blocks' dtypes and masters") {
    Dtypes older(kLow);
    older.whole_masters = true;
    for (const Dtypes& dtype :
         {Dtypes(kFloat), Dtypes(kLow), Dtypes(kHalf), Dtypes(kFloat, kHalf), Dtypes(kHalf, kLow), older}) {
        for (const std::uint32_t workers : {1U, 2U, 3U}) {
            for (const bool tight : {true, false}) {
                CAPTURE(static_cast<int>(dtype.even));
                CAPTURE(static_cast<int>(dtype.odd));
                CAPTURE(dtype.whole_masters);
                CAPTURE(workers);
                CAPTURE(tight);
                const Scratch scratch;
                const std::vector<std::string> folders{scratch.folder("one"), scratch.folder("two")};
                {
                    Rig rig(folders, dtype, workers, tight ? Rig::minimum_bytes(dtype, workers) : kPlenty,
                            store::OpenMode::create);
                    rig.initialise();
                    for (std::uint64_t step = 1; step <= 5; ++step) CHECK(rig.run_all(step) == 1);
                }
                CHECK(test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, workers, 5)));
            }
        }
    }
}

TEST_CASE("the thread pool and io_uring leave the same store") {
    for (const auto& engine : {store::make_io_engine, store::make_thread_io_engine}) {
        const Scratch scratch;
        const std::vector<std::string> folders{scratch.folder()};
        {
            Rig rig(folders, kLow, 1, Rig::minimum_bytes(kLow, 1), store::OpenMode::create, engine);
            rig.initialise();
            for (std::uint64_t step = 1; step <= 3; ++step) CHECK(rig.run_all(step) == 1);
        }
        CHECK(test::equal(test::stored_contents(folders, kLow), test::expected_contents(kLow, 1, 3)));
    }
}

TEST_CASE("a machine with two NUMA nodes leaves the same store, with few threads and with many") {
    constexpr double kNorm = 3;  // clips every step
    for (const std::uint32_t threads : {2U, 3U, 5U}) {
        for (const auto& kept : {std::pair(Rig::minimum_bytes(kLow, 1), false), {kPlenty, false}, {kPlenty, true}}) {
            const std::uint64_t budget = kept.first;
            const bool clips = kept.second;
            CAPTURE(threads);
            CAPTURE(budget);
            CAPTURE(clips);
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder("a"), scratch.folder("b")};
            {
                Rig rig(folders, kLow, 1, budget, store::OpenMode::create, store::make_io_engine, false, kernels::adamw,
                        threads, {}, {}, [&](pipeline::PipelineSettings& settings) {
                            const store::Layout layout(test::small_shape(kLow), 2);
                            settings.nodes = schedule::plan_nodes(layout, {{0, {0}}, {1, {1}}}, {}, threads);
                            CHECK(settings.nodes.count() == 2);
                        });
                if (clips) rig.max_norm = kNorm;
                rig.initialise();
                for (std::uint64_t step = 1; step <= 3; ++step) CHECK(rig.run_all(step) == 1);
                CHECK(rig.run_all(4, true) == pipeline::kNotFinite);
                CHECK(rig.run_all(4) == 1);
            }
            CHECK(test::equal(test::stored_contents(folders, kLow),
                              test::expected_contents(kLow, 1, 4, {}, kernels::adamw,
                                                      clips ? std::optional<double>(kNorm) : std::nullopt)));
        }
    }
}

TEST_CASE("within the budget nothing is read in steady state; beyond it, reads are ahead of their use") {
    const Scratch scratch;
    Rig rig({scratch.folder()}, kLow, 1, kPlenty, store::OpenMode::create);
    rig.initialise();
    for (std::uint64_t step = 1; step <= 2; ++step) rig.run_all(step);
    const auto before = rig.pipeline().stats();
    for (std::uint64_t step = 3; step <= 5; ++step) rig.run_all(step);
    CHECK(rig.pipeline().stats().bytes_read == before.bytes_read);
    CHECK(rig.pipeline().stats().pulls_waited == before.pulls_waited);
    CHECK(rig.pipeline().stats().bytes_written > before.bytes_written);
}

TEST_CASE("parameters stay in the window for a gradient that comes after their release, and are read once") {
    constexpr std::uint32_t kBlocks = 16;
    store::StoreShape shape;
    shape.blocks.assign(kBlocks, {"b", store::kChunkStep, true});
    const store::Layout layout(shape, 1);
    const Scratch scratch;
    store::ChunkStore store({scratch.folder()}, layout, test::kUuid, store::OpenMode::create);
    pipeline::PipelineSettings settings;
    const std::vector<bool> held(kBlocks, false);
    settings.plan = schedule::plan_residency(layout, schedule::plan_minimum(layout, 1, held).minimum_bytes, 1, held);
    const store::AlignedBuffer window(settings.plan.window_bytes);
    settings.window = window.data();
    pipeline::Pipeline pipeline(store, settings);
    const std::vector<float> values(store::kChunkStep, 0.5F);
    for (std::uint32_t block = 0; block < kBlocks; ++block) pipeline.initialise(block, values.data());
    pipeline.finish_initialise();

    const auto wait = [](const auto& call) {
        std::promise<pipeline::Outcome> done;
        call([&](pipeline::Outcome outcome) { done.set_value(outcome); });
        return done.get_future().get();
    };
    const auto backward = [&] {
        pipeline.begin(0, {test::kSettings});
        for (std::uint32_t block = kBlocks; block-- > 0;) {
            const std::uint64_t written = pipeline.stats().bytes_written;
            REQUIRE(wait([&](pipeline::Reply reply) { pipeline.pull(0, block, std::move(reply)); }).ok);
            pipeline.release(block);
            const auto* const gradient = reinterpret_cast<const std::byte*>(values.data());
            REQUIRE(wait([&](pipeline::Reply reply) { pipeline.push(0, block, gradient, std::move(reply)); }).ok);
            // A worker that is far ahead of the updates takes the slots of blocks that wait for theirs.
            test::wait_until([&] { return pipeline.stats().bytes_written > written; });
        }
        CHECK(wait([&](pipeline::Reply reply) { pipeline.vote(0, false, std::move(reply)); }).value == 1);
    };
    for (int step = 0; step < 2; ++step) backward();
    constexpr int kSteps = 8;
    std::uint64_t once = 0;
    for (const store::ChunkPlace& place : layout.chunks()) once += place.record_bytes() + store::kPage;
    // Reads ahead of a step may end before it begins or after: those of as many blocks, and of as many states, as fit.
    const std::uint64_t ahead = schedule::kPrefetchPulls * (layout.window_bytes(0) + store::kPage) +
                                settings.plan.state_buffers * layout.chunks()[0].state_bytes();
    const std::uint64_t before = pipeline.stats().bytes_read;
    for (int step = 0; step < kSteps; ++step) backward();
    CHECK(pipeline.stats().bytes_read - before <= kSteps * once + ahead);
}

TEST_CASE("a gradient that is not finite rolls the whole step back and training goes on") {
    for (const auto dtype : {kFloat, kLow, kHalf}) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 2), kPlenty}) {
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            {
                Rig rig(folders, dtype, 2, memory, store::OpenMode::create);
                rig.initialise();
                CHECK(rig.run_all(1) == 1);
                CHECK(rig.run_all(2, true) == pipeline::kNotFinite);
                CHECK(rig.run_all(2) == 1);
                CHECK(rig.run_all(3, true) == pipeline::kNotFinite);
                CHECK(rig.run_all(3) == 1);
                CHECK(rig.pipeline().stats().rolled_back == 2);
                CHECK(rig.pipeline().stats().attempts == 5);
                CHECK(rig.pipeline().stats().step == 3);
            }
            CHECK(test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, 2, 3)));
        }
    }
}

TEST_CASE("a worker may ask for the roll-back") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Rig rig(folders, kFloat, 1, kPlenty, store::OpenMode::create);
        rig.initialise();
        CHECK(rig.run_step(0, 1, false, true) == 0);
        CHECK(rig.run_step(0, 1) == 1);
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 1)));
}

TEST_CASE("nobody waits for the pushes of a worker that has given the step up") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Rig rig(folders, kFloat, 2, kPlenty, store::OpenMode::create);
        rig.initialise();
        for (const std::uint32_t worker : {0U, 1U}) rig.pipeline().begin(worker, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        const auto gradient = rig.make_gradient(0, 1, 3, false);
        std::promise<void> before;
        std::promise<void> after;
        rig.pipeline().push(0, 3, gradient.data(), [&](pipeline::Outcome) { before.set_value(); });
        std::promise<std::int64_t> ended;
        rig.pipeline().vote(1, true, [](pipeline::Outcome) {});
        before.get_future().wait();
        rig.pipeline().push(0, 2, gradient.data(), [&](pipeline::Outcome) { after.set_value(); });
        after.get_future().wait();
        rig.pipeline().vote(0, false, [&](pipeline::Outcome outcome) { ended.set_value(outcome.value); });
        CHECK(ended.get_future().get() == 0);
        CHECK(rig.run_all(1) == 1);
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 2, 1)));
}

TEST_CASE("one server of several commits or rolls back what it has prepared as it is told") {
    for (const auto dtype : {kFloat, kLow}) {
        for (const std::uint64_t memory : {Rig::minimum_bytes(dtype, 2), kPlenty}) {
            const Scratch scratch;
            const std::vector<std::string> folders{scratch.folder()};
            {
                Rig rig(folders, dtype, 2, memory, store::OpenMode::create, store::make_io_engine, true);
                rig.initialise();
                CHECK(rig.run_all(1) == pipeline::kPrepared);
                CHECK(rig.pipeline().stats().step == 0);
                CHECK(rig.decide(true) == pipeline::kCommitted);
                CHECK(rig.decide(true) == pipeline::kCommitted);  // the other worker says the same
                CHECK(rig.run_all(7) == pipeline::kPrepared);
                CHECK(rig.decide(false) == pipeline::kRolledBack);
                CHECK(rig.decide(false) == pipeline::kRolledBack);
                CHECK(rig.run_all(2, true) == pipeline::kNotFinite);  // here; the others hear it
                CHECK(rig.decide(false) == pipeline::kRolledBack);
                CHECK(rig.run_all(2) == pipeline::kPrepared);
                CHECK(rig.decide(true) == pipeline::kCommitted);
                CHECK(rig.pipeline().stats().rolled_back == 2);
                CHECK(rig.run_all(3) == pipeline::kPrepared);  // never decided on
            }
            CHECK(test::equal(test::stored_contents(folders, dtype), test::expected_contents(dtype, 2, 2)));
        }
    }
}

TEST_CASE("a step may begin only when the one before it was decided on") {
    const Scratch scratch;
    for (const bool leaves : {false, true}) {
        Rig rig({scratch.folder()}, kFloat, 1, kPlenty, leaves ? store::OpenMode::open : store::OpenMode::create,
                store::make_io_engine, true);
        if (!leaves) rig.initialise();
        CHECK(rig.run_all(1) == pipeline::kPrepared);
        if (leaves) {
            rig.pipeline().leave(0);
        } else {
            rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        }
        REQUIRE(rig.pipeline().failure().has_value());
        CHECK(rig.decide(true) == -1);
    }
}

// ThreadSanitizer sees a gradient that was given back too early.
TEST_CASE("a failure gives a gradient back only when nobody reads it any more") {
    const Scratch scratch;
    {
        Rig rig({scratch.folder()}, kFloat, 1, kPlenty, store::OpenMode::create);
        rig.initialise();
        CHECK(rig.run_all(1) == 1);
    }
    for (int round = 0; round < 30; ++round) {
        Rig rig({scratch.folder()}, kFloat, 1, kPlenty, store::OpenMode::open);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        REQUIRE(rig.pull(0, 3) >= 0);
        auto gradient = rig.make_gradient(0, 2, 3, false);
        std::promise<void> mine;
        rig.pipeline().push(0, 3, gradient.data(), [&](pipeline::Outcome) { mine.set_value(); });
        rig.pipeline().release(3);
        for (int i = 0; i < round * 20 && !rig.pipeline().failure(); ++i) std::this_thread::yield();
        rig.pipeline().fail(Error(ErrorKind::worker_lost, "worker 0 is lost"));
        mine.get_future().wait();
        std::fill(gradient.begin(), gradient.end(), std::byte{1});
    }
}

TEST_CASE("a server that ends in the middle of a step resumes at the last commit") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    const auto memory = Rig::minimum_bytes(kLow, 1);
    {
        Rig rig(folders, kLow, 1, memory, store::OpenMode::create);
        rig.initialise();
        for (std::uint64_t step = 1; step <= 2; ++step) rig.run_all(step);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        for (std::uint32_t block = 6; block > 3; --block) {  // half a backward pass, never committed
            REQUIRE(rig.pull(0, block) >= 0);
            const auto gradient = rig.make_gradient(0, 3, block, false);
            std::promise<void> taken;
            rig.pipeline().push(0, block, gradient.data(), [&](pipeline::Outcome) { taken.set_value(); });
            rig.pipeline().release(block);
            taken.get_future().wait();
        }
    }
    CHECK(test::equal(test::stored_contents(folders, kLow), test::expected_contents(kLow, 1, 2)));
    {
        Rig rig(folders, kLow, 1, memory, store::OpenMode::open);
        CHECK(rig.pipeline().stats().step == 2);
        for (std::uint64_t step = 3; step <= 5; ++step) CHECK(rig.run_all(step) == 1);
    }
    CHECK(test::equal(test::stored_contents(folders, kLow), test::expected_contents(kLow, 1, 5)));
}

TEST_CASE("a full disk during a run fails every request and keeps the last commit") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    std::atomic<int> writes_left{40};
    {
        Rig rig(folders, kFloat, 1, kPlenty, store::OpenMode::create, [&](std::uint32_t depth) {
            return std::make_unique<test::FailingEngine>(store::make_io_engine(depth),
                                                         [&] { return writes_left-- <= 0 ? ENOSPC : 0; });
        });
        rig.initialise();
        CHECK(rig.run_all(1) == 1);
        CHECK(rig.run_all(2) == 1);
        CHECK(rig.run_all(3) == -1);
        REQUIRE(rig.pipeline().failure().has_value());
        CHECK(rig.pipeline().failure()->kind() == ErrorKind::no_space);
        CHECK(rig.pull(0, 1) == -1);
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 2)));
}

TEST_CASE("a flipped bit is found before it is used, and named with file and offset") {
    for (const bool in_states : {false, true}) {
        const Scratch scratch;
        const std::vector<std::string> folders{scratch.folder()};
        std::uint64_t offset = 0;
        {
            Rig rig(folders, kLow, 1, kPlenty, store::OpenMode::create);
            rig.initialise();
            CHECK(rig.run_all(1) == 1);
            const auto& place = rig.layout().chunks_of(3)[1];
            offset = place.offset + (in_states ? place.parameter_bytes + store::kPage : 0) + 100;
        }
        flip_byte(folders[0] + "/version-1.luwu", offset);
        Rig rig(folders, kLow, 1, kPlenty, store::OpenMode::open);
        CHECK(rig.run_all(2) == -1);
        REQUIRE(rig.pipeline().failure().has_value());
        CHECK(rig.pipeline().failure()->kind() == ErrorKind::corrupt);
        const std::string text = rig.pipeline().failure()->what();
        CHECK(text.find("version-1.luwu at offset " + std::to_string(offset - 100)) != std::string::npos);
        CHECK_THROWS_AS((void)test::stored_contents(folders, kLow), Error);
    }
}

TEST_CASE("a step that leaves a trainable block out is refused, and rolled back if that is wanted") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Rig rig(folders, kLow, 1, kPlenty, store::OpenMode::create);
        rig.initialise();
        for (const bool roll_back : {true, false}) {
            rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {});
            std::promise<pipeline::Outcome> ended;
            rig.pipeline().vote(0, roll_back, [&](pipeline::Outcome outcome) { ended.set_value(outcome); });
            CHECK(ended.get_future().get().ok == roll_back);
        }
        REQUIRE(rig.pipeline().failure().has_value());
        const std::string text = rig.pipeline().failure()->what();
        CHECK(text.find("block 'root' was pushed by no worker; every worker must push") != std::string::npos);
    }
    CHECK(test::equal(test::stored_contents(folders, kLow), test::expected_contents(kLow, 1, 0)));
}

TEST_CASE("whoever takes the place of a worker that left goes on, and so do the others") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Rig rig(folders, kFloat, 2, kPlenty, store::OpenMode::create);
        rig.initialise();
        CHECK(rig.run_all(1) == 1);
        rig.pipeline().leave(1);
        rig.pipeline().joined(1);
        CHECK(rig.run_all(2) == 1);
        rig.pipeline().leave(1);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        REQUIRE(rig.pipeline().failure().has_value());
        CHECK(rig.pipeline().failure()->kind() == ErrorKind::worker_lost);
    }
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 2, 2)));
}

TEST_CASE("a store without values says so to whoever reads it or pushes to it") {
    for (const bool pushes : {false, true}) {
        const Scratch scratch;
        const std::vector<std::string> folders{scratch.folder()};
        {
            Rig rig(folders, kLow, 1, kPlenty, store::OpenMode::create);
            if (pushes) {
                const auto gradient = rig.make_gradient(0, 1, 0, false);
                rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}}, {});
                rig.pipeline().push(0, 0, gradient.data(), [](pipeline::Outcome outcome) { CHECK_FALSE(outcome.ok); });
            } else {
                CHECK(rig.pull(0, 0) == -1);
            }
            REQUIRE(rig.pipeline().failure().has_value());
            CHECK(rig.pipeline().failure()->kind() == ErrorKind::empty);
        }
        const store::Layout layout(test::small_shape(kLow), 1);
        const store::ChunkStore store(folders, layout, test::kUuid, store::OpenMode::read_only);
        CHECK_THROWS_WITH_AS((void)test::read_block(store, 0), doctest::Contains("has no values yet"), Error);
    }
}

TEST_CASE("workers that disagree are told so") {
    const Scratch scratch;
    Rig rig({scratch.folder()}, kFloat, 2, kPlenty, store::OpenMode::create);
    rig.initialise();
    SUBCASE("on hyper-parameters") {
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().begin(1, {{0.02, 0.9, 0.999, 1e-8, 0.1}});
    }
    SUBCASE("on hyper-parameters, also when the others have voted") {
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().vote(0, true, [](pipeline::Outcome) {});
        CHECK_FALSE(rig.pipeline().failure().has_value());
        rig.pipeline().begin(1, {{0.02, 0.9, 0.999, 1e-8, 0.1}});
    }
    SUBCASE("on beginning once") {
        const auto gradient = rig.make_gradient(0, 1, 1, false);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});  // the answer to the first had not come
        CHECK_FALSE(rig.pipeline().failure().has_value());
        rig.pipeline().push(0, 1, gradient.data(), [](pipeline::Outcome) {});
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    }
    SUBCASE("on the blocks of a step") {
        const auto gradient = rig.make_gradient(0, 1, 1, false);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().begin(1, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().push(0, 1, gradient.data(), [](pipeline::Outcome) {});
        rig.pipeline().vote(0, false, [](pipeline::Outcome) {});
        rig.pipeline().vote(1, false, [](pipeline::Outcome) {});
    }
    SUBCASE("on pushing once") {
        const auto gradient = rig.make_gradient(0, 1, 1, false);
        rig.pipeline().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
        rig.pipeline().push(0, 1, gradient.data(), [](pipeline::Outcome) {});
        rig.pipeline().push(0, 1, gradient.data(), [](pipeline::Outcome) {});
    }
    REQUIRE(rig.pipeline().failure().has_value());
    CHECK(rig.pipeline().failure()->kind() == ErrorKind::order);
}
