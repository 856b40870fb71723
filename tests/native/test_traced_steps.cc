// A pipeline records every stage of every step that is traced, once.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <optional>

#include "pipeline/tracing.h"
#include "support.h"

using namespace luwu;
using luwu::test::Rig;
using luwu::test::Scratch;
using pipeline::Tracing;
using trace::Kind;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr std::uint32_t kWorkers = 2;
constexpr std::uint64_t kRoom = 100000;
constexpr std::uint64_t kRoomOfWorker = 500;
constexpr std::uint64_t kPlenty = 1U << 28;
constexpr double kAlways = 5;

using Counts = std::map<std::pair<std::uint64_t, Kind>, std::uint64_t>;  // of a step's records of a kind

Counts counts_of(const pipeline::Traced& traced) {
    Counts counts;
    for (const trace::Record& record : traced.recorded.records()) {
        CHECK(record.begin_ns > 0);
        CHECK(record.end_ns >= record.begin_ns);
        ++counts[{record.step, record.kind}];
    }
    return counts;
}

struct Traces {
    std::shared_ptr<Tracing> tracing = std::make_shared<Tracing>();
    Scratch scratch;
    Rig rig;

    explicit Traces(std::uint64_t memory)
        : rig({scratch.folder()}, kFloat, kWorkers, memory, store::OpenMode::create, store::make_io_engine, false,
              kernels::adamw, 2, {}, {}, [this](pipeline::PipelineSettings& settings) { settings.tracing = tracing; }) {
        rig.initialise();
    }

    void run(std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t step = first; step <= last; ++step) REQUIRE(rig.run_all(step) == pipeline::kCommitted);
        REQUIRE_FALSE(rig.pipeline().wait_until_written());
    }
};

}  // namespace

TEST_CASE("each stage of a traced step is recorded once, in memory, out of core and with clipping") {
    for (const bool clips : {false, true}) {
        for (const std::uint64_t memory : {kPlenty, Rig::minimum_bytes(kFloat, kWorkers)}) {
            if (clips && memory != kPlenty) continue;  // it needs more
            CAPTURE(clips);
            CAPTURE(memory);
            Traces traces(memory);
            if (clips) traces.rig.max_norm = kAlways;
            traces.run(1, 1);
            CHECK(traces.tracing->request().records == 0);
            traces.tracing->start(2, kRoom, kRoomOfWorker);
            CHECK_FALSE(traces.tracing->take());
            traces.run(2, 4);
            const auto traced = traces.tracing->take();
            REQUIRE(traced);
            CHECK(traced->recorded.dropped == 0);
            CHECK(traced->first_step == 2);
            CHECK(traced->last_step == 3);
            CHECK_FALSE(traces.tracing->take());
            const store::Layout& layout = traces.rig.layout();
            std::uint64_t trainable = 0;
            std::uint64_t chunks = 0;
            for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
                if (!layout.shape().blocks[block].trainable) continue;
                ++trainable;
                chunks += layout.chunks_of(block).size();
            }
            Counts counts = counts_of(*traced);
            for (const std::uint64_t step : {2U, 3U}) {
                CHECK(counts[{step, Kind::hand_out}] == kWorkers * (2 * layout.block_count() - 1));
                CHECK(counts[{step, Kind::collect}] == kWorkers * trainable);
                CHECK(counts[{step, Kind::update}] == chunks);
                if (clips) CHECK(counts[{step, Kind::keep}] == chunks);
                CHECK(counts[{step, Kind::write}] == chunks);
                CHECK(counts[{step, Kind::commit}] == 1);
                if (memory != kPlenty) CHECK(counts[{step, Kind::read_states}] > 0);
            }
            CHECK(counts[{1, Kind::collect}] == 0);
        }
    }
}

TEST_CASE("an attempt that is rolled back is recorded, and counts") {
    Traces traces(kPlenty);
    traces.tracing->start(2, kRoom, kRoomOfWorker);
    CHECK(traces.rig.run_all(1, true) == pipeline::kNotFinite);
    traces.run(1, 2);
    const auto traced = traces.tracing->take();
    REQUIRE(traced);
    CHECK(traced->first_step == 1);
    CHECK(traced->last_step == 1);
    Counts counts = counts_of(*traced);
    CHECK(counts[{1, Kind::roll_back}] == 1);
    CHECK(counts[{1, Kind::commit}] == 1);
}

TEST_CASE("workers are asked for records of the attempts that are traced, and told which is the last") {
    Tracing tracing;
    tracing.start(2, kRoom, kRoomOfWorker);
    CHECK(tracing.request().records == 0);
    tracing.begin_attempt(1);
    CHECK(tracing.request().records == kRoomOfWorker);
    CHECK_FALSE(tracing.request().last);
    tracing.begin_attempt(2);
    CHECK(tracing.request().records == kRoomOfWorker);
    CHECK(tracing.request().last);
    tracing.begin_attempt(3);
    CHECK(tracing.request().records == 0);
    CHECK_FALSE(tracing.take());  // what the last one owes may still come
    tracing.begin_attempt(4);
    CHECK(tracing.take());
}

TEST_CASE("one trace at a time, and another after it or in place of one that is given up") {
    Tracing tracing;
    CHECK(luwu::test::kind_of([&] { tracing.start(0, 1, 1); }, "at least 1 step") == ErrorKind::invalid);
    CHECK(luwu::test::kind_of([&] { tracing.start(1, 1, 0); }, "records, found 0") == ErrorKind::invalid);
    tracing.start(1, 1, 1);
    CHECK(luwu::test::kind_of([&] { tracing.start(1, 1, 1); }, "under way") == ErrorKind::order);
    tracing.begin_attempt(1);
    CHECK(tracing.recorder.on());
    tracing.give_up();
    CHECK_FALSE(tracing.recorder.on());
    CHECK_FALSE(tracing.take());
    tracing.start(1, 1, 1);
    tracing.begin_attempt(2);
    tracing.stands(1, 1);
    CHECK_FALSE(tracing.take());
    tracing.stands(2, 2);
    REQUIRE(tracing.take());
    tracing.start(1, 1, 1);
}

TEST_CASE("a trace that takes no more attempts ends with the last one, at once where nothing is owed") {
    Tracing tracing;
    tracing.start(9, kRoom, kRoomOfWorker);
    tracing.begin_attempt(1);
    tracing.stands(1, 1);
    CHECK_FALSE(tracing.take());
    tracing.take_no_more();
    auto traced = tracing.take();
    REQUIRE(traced);
    CHECK(traced->last_step == 1);
    tracing.start(9, kRoom, kRoomOfWorker);
    tracing.begin_attempt(2);
    tracing.begin_attempt(3);
    tracing.take_no_more();
    CHECK_FALSE(tracing.take());
    tracing.stands(3, 2);
    CHECK_FALSE(tracing.take());
    tracing.stands(3, 3);
    traced = tracing.take();
    REQUIRE(traced);
    CHECK(traced->first_step == 2);
    CHECK(traced->last_step == 3);
}
