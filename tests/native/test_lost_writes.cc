// Writes that the disk acknowledged and lost: data that an earlier attempt left in the same place is never taken for
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "store/writer.h"
#include "support.h"

using namespace luwu;
using luwu::test::Dtypes;
using luwu::test::kind_of;
using luwu::test::Rig;
using luwu::test::Scratch;
using store::OpenMode;

namespace {

const Dtypes kFloat(kernels::Dtype::float32);
constexpr std::uint64_t kPlenty = 1U << 26;

// Acknowledges one write without doing it: the one at which `countdown` reaches 0.
class ForgetfulEngine : public store::IoEngine {
  public:
    ForgetfulEngine(std::uint32_t depth, std::shared_ptr<std::atomic<int>> countdown)
        : engine_(store::make_thread_io_engine(depth)), countdown_(std::move(countdown)) {}
    void submit(store::IoRequest& request) override {
        if (request.operation == store::IoRequest::Operation::write && countdown_->fetch_sub(1) == 1) {
            forgotten_.push_back(&request);
            return engine_->wake();
        }
        engine_->submit(request);
    }
    void wait(std::vector<store::IoRequest*>& completed) override {
        if (forgotten_.empty()) return engine_->wait(completed);
        for (store::IoRequest* request : std::exchange(forgotten_, {})) {
            request->advance(request->remaining_bytes());
            completed.push_back(request);
        }
    }
    void wake() override { engine_->wake(); }
    [[nodiscard]] std::uint32_t depth() const override { return engine_->depth(); }
    [[nodiscard]] const char* name() const override { return "forgetful"; }

  private:
    std::unique_ptr<store::IoEngine> engine_;
    std::shared_ptr<std::atomic<int>> countdown_;
    std::vector<store::IoRequest*> forgotten_;
};

// A server of one worker whose disk loses a write.
struct Forgetful {
    explicit Forgetful(const std::vector<std::string>& folders, OpenMode mode, bool prepares = false)
        : rig(
              folders, kFloat, 1, kPlenty, mode,
              [countdown = countdown](std::uint32_t depth) {
                  return std::make_unique<ForgetfulEngine>(depth, countdown);
              },
              prepares) {}

    std::shared_ptr<std::atomic<int>> countdown = std::make_shared<std::atomic<int>>(0);
    Rig rig;
};

int trainable_chunks(const store::Layout& layout) {
    const auto chunks = layout.chunks();
    return static_cast<int>(
        std::count_if(chunks.begin(), chunks.end(), [](const store::ChunkPlace& place) { return place.trainable; }));
}

void check_lost(const std::vector<std::string>& folders) {
    CHECK(kind_of([&] { static_cast<void>(test::stored_contents(folders, kFloat)); },
                  "was written by another attempt") == ErrorKind::corrupt);
}

}  // namespace

TEST_CASE("a lost write of an attempt that was rolled back before and is made again is found") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Forgetful server(folders, OpenMode::create, true);
        server.rig.initialise();
        CHECK(server.rig.run_all(1) == pipeline::kPrepared);
        CHECK(server.rig.decide(true) == pipeline::kCommitted);
        CHECK(server.rig.run_all(7) == pipeline::kPrepared);  // with other gradients; all records are written
        CHECK(server.rig.decide(false) == pipeline::kRolledBack);
        *server.countdown = 1;
        CHECK(server.rig.run_all(2) == pipeline::kPrepared);
        CHECK(server.rig.decide(true) == pipeline::kCommitted);
    }
    check_lost(folders);
}

TEST_CASE("a lost write of an attempt that a crash ended before and is made again is found") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Forgetful server(folders, OpenMode::create);
        server.rig.initialise();
        CHECK(server.rig.run_all(1) == pipeline::kCommitted);
    }
    {
        Forgetful server(folders, OpenMode::open, true);
        CHECK(server.rig.run_step(0, 7) ==
              pipeline::kPrepared);  // all records are written, and the step is not decided
    }
    {
        Forgetful server(folders, OpenMode::open);
        *server.countdown = 1;
        CHECK(server.rig.run_all(2) == pipeline::kCommitted);
    }
    check_lost(folders);
}

TEST_CASE("a lost write of updates that clipping makes again is found") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    {
        Forgetful server(folders, OpenMode::create);
        server.rig.initialise();
        server.rig.max_norm = 1e9;
        CHECK(server.rig.run_all(1) == pipeline::kCommitted);  // not clipped: the next step updates at once
        server.rig.pipeline().wait_until_written();
        server.rig.max_norm = 1e-3;
        *server.countdown = trainable_chunks(server.rig.layout()) + 1;
        CHECK(server.rig.run_all(2) == pipeline::kCommitted);
        server.rig.pipeline().wait_until_written();
        CHECK(server.rig.pipeline().stats().redone == 1);
    }
    check_lost(folders);
}

TEST_CASE("a lost write of first values that are written again is found") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder()};
    const store::Layout layout(test::small_shape(kFloat), 1);
    const auto fill = [&](store::ChunkStore& store, float value, std::uint32_t skipped) {
        for (std::uint32_t i = 0; i < layout.chunks().size(); ++i) {
            const std::vector<float> values(layout.chunks()[i].elements, value);
            if (i != skipped) store::write_chunk(store, layout.chunks()[i], 0, values.data());
        }
    };
    for (const std::uint32_t lost :
         {0U, static_cast<std::uint32_t>(layout.chunks().size()) - 1}) {  // the last is frozen
        std::filesystem::remove_all(folders[0]);
        std::filesystem::create_directories(folders[0]);
        {
            store::ChunkStore store(folders, layout, test::kUuid, OpenMode::create);
            fill(store, 1, ~0U);
        }  // a crash before the commit
        {
            store::ChunkStore store(folders, layout, test::kUuid, OpenMode::open);
            fill(store, 2, lost);
            store::CommitRecord record;
            record.counts.assign(layout.block_count(), 0);
            store.commit(record);
        }
        check_lost(folders);
    }
}
