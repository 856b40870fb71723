// Commit records: damage never hides more than the last commit without a message and never makes a store fresh, and a
// copy that was made with hard links stays as it is.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "commit_support.h"
#include "store/lock_file.h"
#include "store/snapshots.h"
#include "store/writer.h"

using namespace luwu;
using luwu::test::check_at;
using luwu::test::Dtypes;
using luwu::test::findings_of;
using luwu::test::Folders;
using luwu::test::kFloat;
using luwu::test::kind_of;
using luwu::test::kPlenty;
using luwu::test::kUuid;
using luwu::test::layout_of;
using luwu::test::link_copy;
using luwu::test::Rig;
using luwu::test::Scratch;
using luwu::test::spoil;
using luwu::test::train;
using store::ChunkStore;
using store::OpenMode;

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kCopyDistance = 1U << 16U;  // docs/store-format.md

std::uint64_t offset_of(std::uint64_t copy, std::uint64_t slot) { return copy * kCopyDistance + slot * store::kPage; }

// Spoils both copies of a sequence's slot.
void spoil_slot(const std::string& folder, std::uint64_t sequence) {
    for (const std::uint64_t copy : {0, 1}) spoil(folder + "/commit.luwu", offset_of(copy, sequence % 2));
}

}  // namespace

TEST_CASE("a copy made with hard links and the store are each trained on, and the other stays as it is") {
    const Scratch scratch;
    const Folders run{scratch.folder("run-a"), scratch.folder("run-b")};
    const Folders copy{scratch.folder("copy-a"), scratch.folder("copy-b")};
    train(run, 1, 2, OpenMode::create);
    store::take_snapshot(*std::make_unique<ChunkStore>(run, layout_of(run), kUuid, OpenMode::open), false);
    for (const bool has_spares : {false, true}) {
        CAPTURE(has_spares);
        for (std::size_t i = 0; i < run.size(); ++i) link_copy(run[i], copy[i]);
        if (has_spares) {
            const store::Layout layout = layout_of(run);
            ChunkStore store(run, layout, kUuid, OpenMode::open);
            store.make_room();
            for (std::size_t i = 0; i < run.size(); ++i) link_copy(run[i], copy[i]);
        }
        const std::uint64_t step = has_spares ? 5 : 2;
        train(run, step + 1, step + 3);
        check_at(copy, step);
        check_at(run, step + 3);
        train(copy, step + 1, step + 2);
        check_at(run, step + 3);
        check_at(copy, step + 2);
        check_at(store::snapshot_folders(run, 2), 2);
        check_at(store::snapshot_folders(copy, 2), 2);
    }
}

TEST_CASE("stripes of two copies that are trained apart are not taken for one store") {
    const Scratch scratch;
    const Folders run{scratch.folder("run-0"), scratch.folder("run-1")};
    const Folders copy{scratch.folder("copy-0"), scratch.folder("copy-1")};
    train(run, 1, 2, OpenMode::create);
    for (const std::size_t stripe : {0, 1}) link_copy(run[stripe], copy[stripe]);
    train(run, 3, 4);
    train(copy, 5, 6);  // with other gradients
    for (const Folders& mixed : {Folders{run[0], copy[1]}, Folders{copy[0], run[1]}}) {
        CHECK(kind_of([&] { (void)test::stored_contents(mixed, kFloat); }, "attempt") == ErrorKind::corrupt);
    }
    CHECK_NOTHROW((void)test::stored_contents(run, kFloat));
    CHECK_NOTHROW((void)test::stored_contents(copy, kFloat));
}

TEST_CASE("a spare that a linked copy has, too, is not written to") {
    const Scratch scratch;
    const Folders run{scratch.folder("run")};
    const Folders copy{scratch.folder("copy")};
    const Folders third{scratch.folder("third")};  // has the versions, too, so that `run` makes spares
    train(run, 1, 2, OpenMode::create);
    link_copy(run[0], third[0]);
    {
        const store::Layout layout = layout_of(run);
        ChunkStore store(run, layout, kUuid, OpenMode::open);
        store.make_room();
    }
    link_copy(run[0], copy[0]);
    train(run, 3, 3);
    train(copy, 7, 7);  // with other gradients
    check_at(run, 3);
    check_at(third, 2);
}

TEST_CASE("a store and its linked copy are open at the same time, and each of them once") {
    const Scratch scratch;
    const Folders run{scratch.folder("run")};
    const Folders copy{scratch.folder("copy")};
    const store::Layout layout = layout_of(run);
    train(run, 1, 1, OpenMode::create);
    const auto locked = [&](const Folders& folders) {
        return kind_of([&] { ChunkStore(folders, layout, kUuid, OpenMode::open); }, std::to_string(getpid())) ==
               ErrorKind::locked;
    };
    SUBCASE("copied at rest") {
        link_copy(run[0], copy[0]);
        const ChunkStore first(run, layout, kUuid, OpenMode::open);
        const ChunkStore second(copy, layout, kUuid, OpenMode::open);
        CHECK(locked(run));
        CHECK(locked(copy));
    }
    SUBCASE("copied while it is open") {
        const ChunkStore first(run, layout, kUuid, OpenMode::open);
        link_copy(run[0], copy[0]);
        CHECK(locked(run));
        const ChunkStore second(copy, layout, kUuid, OpenMode::open);
        CHECK(locked(run));
        CHECK(locked(copy));
    }
    SUBCASE("held by an older version, which does not say in which folder") {
        const ChunkStore first(run, layout, kUuid, OpenMode::open);
        link_copy(run[0], copy[0]);
        std::ofstream(run[0] + "/lock") << getpid();
        CHECK(locked(run));
        CHECK(locked(copy));
    }
    SUBCASE("shared by readers") {
        link_copy(run[0], copy[0]);
        const store::LockedFile reads = store::take_lock(copy[0] + "/lock", true);
        CHECK(reads.held);
        CHECK(store::take_lock(copy[0] + "/lock", true).held);
        CHECK(locked(copy));
        const ChunkStore first(run, layout, kUuid, OpenMode::open);
        CHECK_FALSE(store::take_lock(run[0] + "/lock", true).held);
    }
}

TEST_CASE("both records are valid from the moment a store exists") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    const store::Layout layout = layout_of(folders);
    const auto each_slot_will_do = [&](bool initialised, std::uint64_t step) {
        for (const std::uint64_t slot : {0, 1}) {
            CAPTURE(slot);
            const Folders copy{scratch.folder("copy-a"), scratch.folder("copy-b")};
            for (std::size_t i = 0; i < folders.size(); ++i) {
                fs::remove_all(copy[i]);
                fs::copy(folders[i], copy[i], fs::copy_options::recursive);
                spoil_slot(copy[i], slot);
            }
            if (!initialised) {
                CHECK(kind_of([&] { ChunkStore(copy, layout, kUuid, OpenMode::open); }, "none of the commit records") ==
                      ErrorKind::corrupt);
                continue;
            }
            const ChunkStore store(copy, layout, kUuid, OpenMode::read_only);
            CHECK(store.initialised());
            CHECK(store.committed().step == step);
            CHECK_FALSE(store.findings().empty());
        }
    };
    {
        const ChunkStore store(folders, layout, kUuid, OpenMode::create);
        CHECK(store.findings().empty());
    }
    each_slot_will_do(false, 0);
    fs::remove_all(folders[0]);
    fs::remove_all(folders[1]);
    fs::create_directories(folders[0]);
    fs::create_directories(folders[1]);
    train(folders, 1, 0, OpenMode::create);
    each_slot_will_do(true, 0);
    train(folders, 1, 3);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        REQUIRE(store.before().has_value());
        store.go_back();
        CHECK_FALSE(store.before().has_value());
    }
    each_slot_will_do(true, 2);
    train(folders, 3, 4);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        store::take_snapshot(store, false);
        store.compact();
    }
    each_slot_will_do(true, 4);
    each_slot_will_do(true, 4);
    train(folders, 5, 5);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        store::restore_snapshot(store, 4);
    }
    each_slot_will_do(true, 4);
    CHECK(findings_of(folders).empty());
}

TEST_CASE("no damage makes a store fresh") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    const store::Layout layout = layout_of(folders);
    train(folders, 1, 2, OpenMode::create);
    const auto refused = [&](const std::string& mentions) {
        for (const OpenMode mode : {OpenMode::open, OpenMode::go_on, OpenMode::read_only}) {
            CHECK(kind_of([&] { ChunkStore(folders, layout, kUuid, mode); }, mentions) == ErrorKind::corrupt);
        }
        CHECK(kind_of([&] { ChunkStore(folders, layout, kUuid, OpenMode::create); }, "nothing was changed") ==
              ErrorKind::corrupt);
    };
    SUBCASE("missing") {
        for (const std::string& folder : folders) fs::remove(folder + "/commit.luwu");
        refused("commit.luwu is missing");
    }
    SUBCASE("all zeros") {
        for (const std::string& folder : folders) {
            const auto bytes = fs::file_size(folder + "/commit.luwu");
            fs::resize_file(folder + "/commit.luwu", 0);
            fs::resize_file(folder + "/commit.luwu", bytes);
        }
        refused("none of the commit records is valid");
    }
    SUBCASE("cut off") {
        for (const std::string& folder : folders) fs::resize_file(folder + "/commit.luwu", 0);
        refused("none of the commit records is valid");
    }
    SUBCASE("all zeros, as long as in format 2") {
        for (const std::string& folder : folders) {
            fs::resize_file(folder + "/commit.luwu", 0);
            fs::resize_file(folder + "/commit.luwu", 2 * store::commit_slot_bytes(layout, store::kOldestFormat));
        }
        refused("");
    }
    SUBCASE("scribbled over") {
        for (const std::string& folder : folders) spoil(folder + "/commit.luwu", 0, offset_of(1, 2));
        refused("commit.luwu at offset 0: none of the commit records is valid");
    }
}

TEST_CASE("the copy of a record far behind it, or in another stripe, keeps the last commit") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    train(folders, 1, 3, OpenMode::create);
    SUBCASE("both slots at the beginning of each file") {
        for (const std::string& folder : folders) spoil(folder + "/commit.luwu", 0, offset_of(0, 2));
        CHECK(findings_of(folders).size() == 4);
    }
    SUBCASE("the first stripe's file") {
        fs::remove(folders[0] + "/commit.luwu");
        CHECK(findings_of(folders).size() == 1);
        CHECK(findings_of(folders)[0].find("is missing") != std::string::npos);
    }
    SUBCASE("the second stripe's file") { spoil(folders[1] + "/commit.luwu", 0, offset_of(1, 2)); }
    check_at(folders, 3);
    CHECK_FALSE(findings_of(folders).empty());
    train(folders, 4, 4);  // opening the store to train has mended it
    CHECK(findings_of(folders).empty());
    check_at(folders, 4);
}

TEST_CASE(
    "a damaged record of the last step goes back by one step, and says so; the next step had begun: it is refused") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    const store::Layout layout = layout_of(folders);
    train(folders, 1, 3, OpenMode::create);  // sequence 4
    SUBCASE("at rest") {
        spoil_slot(folders[0], 4);
        REQUIRE(findings_of(folders).size() == 3);
        CHECK(findings_of(folders)[2].find("the store stands at step 2") != std::string::npos);
        check_at(folders, 2);
    }
    SUBCASE("one copy, while the next step was being written") {
        {
            Rig rig(folders, kFloat, 1, kPlenty, OpenMode::open, store::make_io_engine, true);
            CHECK(rig.run_step(0, 4) == pipeline::kPrepared);  // all records are written over step 2
        }
        spoil(folders[0] + "/commit.luwu", offset_of(0, 0));
        CHECK(findings_of(folders).size() == 1);
        check_at(folders, 3);
    }
    SUBCASE("all copies, while the next step was being written") {
        {
            Rig rig(folders, kFloat, 1, kPlenty, OpenMode::open, store::make_io_engine, true);
            CHECK(rig.run_step(0, 4) == pipeline::kPrepared);
        }
        spoil_slot(folders[0], 4);
        CHECK(kind_of([&] { static_cast<void>(test::stored_contents(folders, kFloat)); }, "expected update count 2") ==
              ErrorKind::corrupt);
    }
}

TEST_CASE("first values are never written over what a snapshot or a commit has") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    const Folders copy{scratch.folder("copy")};
    const store::Layout layout = layout_of(folders);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::create);
        const std::vector<float> values(1U << 13U, 1.0F);
        for (const store::ChunkPlace& place : layout.chunks()) store::write_chunk(store, place, 0, values.data());
    }
    link_copy(folders[0], copy[0]);
    struct stat before{};
    REQUIRE(stat((copy[0] + "/frozen.luwu").c_str(), &before) == 0);
    train(folders, 1, 0, OpenMode::create);  // again, from the beginning
    link_copy(folders[0], copy[0]);
    Rig rig(folders, kFloat, 1, kPlenty, OpenMode::open);
    const std::vector<float> values(1U << 13U, 2.0F);
    CHECK(kind_of([&] { rig.pipeline().initialise(0, values.data()); }, "has values already") == ErrorKind::order);
    const std::uint32_t frozen = layout.block_count() - 1;
    CHECK(kind_of([&] { rig.pipeline().initialise(frozen, values.data()); }, "has values already") == ErrorKind::order);
    check_at(folders, 0);
}

TEST_CASE("filling a store that a linked copy shares leaves the copy's chunks alone") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    const Folders copy{scratch.folder("copy")};
    const store::Layout layout = layout_of(folders);
    const auto fill = [&](const Folders& where, float value) {
        ChunkStore store(where, layout, kUuid, OpenMode::open);
        const std::vector<float> values(1U << 13U, value);
        for (const store::ChunkPlace& place : layout.chunks()) store::write_chunk(store, place, 0, values.data());
        store::CommitRecord record;
        record.counts.assign(layout.block_count(), 0);
        store.commit(record);
    };
    {
        const ChunkStore store(folders, layout, kUuid, OpenMode::create);
    }
    link_copy(folders[0], copy[0]);
    fill(copy, 1);
    fill(folders, 2);
    const ChunkStore store(copy, layout, kUuid, OpenMode::read_only);
    for (const store::ChunkPlace& place : layout.chunks()) {
        const store::ChunkContents contents = store::read_chunk(store, place, false);
        float first = 0;
        std::memcpy(&first, contents.parameters.data(), sizeof first);
        CHECK(first == 1);
    }
}
