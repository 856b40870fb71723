// Writes that the disk acknowledged and lost: data that an earlier attempt left in the same place is never taken for
// them.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <set>
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
constexpr std::uint64_t kMostRounds = 100;

// The one write that a disk acknowledges without doing it.
struct Loss {
    enum class Which : std::uint8_t { none, next, next_to_same_place };  // as a write since then

    std::atomic<Which> which{Which::none};
    std::atomic<bool> happened{false};
};

class ForgetfulEngine : public store::IoEngine {
  public:
    ForgetfulEngine(std::uint32_t depth, std::shared_ptr<Loss> loss)
        : engine_(store::make_thread_io_engine(depth)), loss_(std::move(loss)) {}
    void submit(store::IoRequest& request) override {
        if (request.operation == store::IoRequest::Operation::write && is_lost(request)) {
            loss_->which = Loss::Which::none;
            loss_->happened = true;
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
    bool is_lost(const store::IoRequest& request) {
        const Loss::Which which = loss_->which;
        if (which == Loss::Which::next_to_same_place) return !places_.emplace(request.file, request.offset).second;
        places_.clear();
        return which == Loss::Which::next;
    }

    std::unique_ptr<store::IoEngine> engine_;
    std::shared_ptr<Loss> loss_;
    std::set<std::pair<int, std::uint64_t>> places_;
    std::vector<store::IoRequest*> forgotten_;
};

// A server of one worker whose disk loses a write.
struct Forgetful {
    explicit Forgetful(const std::vector<std::string>& folders, OpenMode mode, bool prepares = false)
        : rig(
              folders, kFloat, 1, kPlenty, mode,
              [loss = loss](std::uint32_t depth) { return std::make_unique<ForgetfulEngine>(depth, loss); }, prepares) {
    }

    std::shared_ptr<Loss> loss = std::make_shared<Loss>();
    Rig rig;
};

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
        server.loss->which = Loss::Which::next;
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
        server.loss->which = Loss::Which::next;
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
        // A chunk may be made again before its first record is written: then nothing is written twice.
        for (std::uint64_t rounds = 1; !server.loss->happened; ++rounds) {
            REQUIRE(rounds <= kMostRounds);
            server.loss->which = Loss::Which::none;
            server.rig.max_norm = 1e9;
            CHECK(server.rig.run_all(1) == pipeline::kCommitted);  // not clipped: the next step updates at once
            server.rig.pipeline().wait_until_written();
            server.rig.max_norm = 1e-3;
            server.loss->which = Loss::Which::next_to_same_place;
            CHECK(server.rig.run_all(2) == pipeline::kCommitted);
            server.rig.pipeline().wait_until_written();
            CHECK(server.rig.pipeline().stats().redone == rounds);
        }
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
