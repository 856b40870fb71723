// Folders of a store and of its copies: those of one time are opened after any crash, those of several times refused.
#include <doctest/doctest.h>

#include <filesystem>

#include "commit_support.h"

using namespace luwu;
using luwu::test::check_at;
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
using luwu::test::train;
using store::ChunkStore;
using store::OpenMode;

namespace fs = std::filesystem;

TEST_CASE("a folder of a copy from another time is refused for writing, and store and copy stay as they are") {
    const Scratch scratch;
    const Folders run{scratch.folder("run-0"), scratch.folder("run-1")};
    const Folders copy{scratch.folder("copy-0"), scratch.folder("copy-1")};
    const auto check_refused = [&](std::uint64_t run_step, std::uint64_t copy_step) {
        CAPTURE(run_step);
        for (const Folders& mixed : {Folders{run[0], copy[1]}, Folders{copy[0], run[1]}}) {
            const store::Layout layout = layout_of(mixed);
            CHECK_FALSE(findings_of(mixed).empty());
            for (const OpenMode mode : {OpenMode::open, OpenMode::restore}) {
                const auto open = [&] { const ChunkStore store(mixed, layout, kUuid, mode); };
                CHECK(kind_of(open, "another time") == ErrorKind::corrupt);
            }
        }
        CHECK(findings_of(run).empty());
        CHECK(findings_of(copy).empty());
        check_at(run, run_step);
        check_at(copy, copy_step);
    };
    train(run, 1, 2, OpenMode::create);
    for (const std::size_t stripe : {0, 1}) link_copy(run[stripe], copy[stripe]);
    train(run, 3, 3);
    check_refused(3, 2);
    train(copy, 3, 3);
    check_refused(3, 3);
    train(run, 4, 5);
    check_refused(5, 3);
    fs::copy_file(copy[1] + "/commit.luwu", run[1] + "/commit.luwu", fs::copy_options::overwrite_existing);
    CHECK_FALSE(findings_of(run).empty());
    fs::remove(run[1] + "/commit.luwu");  // as the message says
    train(run, 6, 6);
    check_at(run, 6);
}

TEST_CASE("a commit that was cut short, and openings that were cut short after it, are of one time") {
    const Scratch scratch;
    const Folders run{scratch.folder("run-0"), scratch.folder("run-1")};
    const std::string record = run[1] + "/commit.luwu";
    const std::string before = scratch.folder("before") + "/commit.luwu";
    const auto keep = [&] { fs::copy_file(record, before, fs::copy_options::overwrite_existing); };
    const auto check_opens = [&] {  // each opening is cut short before it comes to the second folder
        for (int opening = 0; opening < 3; ++opening) {
            fs::copy_file(before, record, fs::copy_options::overwrite_existing);
            CHECK(findings_of(run).empty());
            CHECK(ChunkStore(run, layout_of(run), kUuid, OpenMode::open).committed().step == 4);
        }
        check_at(run, 4);
    };
    train(run, 1, 2, OpenMode::create);
    {
        Rig rig(run, kFloat, 1, kPlenty, OpenMode::open);
        REQUIRE(rig.run_all(3) == 1);
        keep();
        REQUIRE(rig.run_all(4) == 1);
    }
    check_opens();
    {
        const store::Layout layout = layout_of(run);
        ChunkStore store(run, layout, kUuid, OpenMode::open);
        keep();
        store.compact();  // its record stands alone
    }
    check_opens();
}
