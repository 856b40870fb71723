// Damage to the files of versions: the one that is committed, and the one that is not.
#include <doctest/doctest.h>

#include <filesystem>

#include "commit_support.h"
#include "store/snapshots.h"

using namespace luwu;
using luwu::test::check_at;
using luwu::test::findings_of;
using luwu::test::Folders;
using luwu::test::kind_of;
using luwu::test::kUuid;
using luwu::test::layout_of;
using luwu::test::Scratch;
using luwu::test::spoil;
using luwu::test::train;
using store::ChunkStore;
using store::OpenMode;

namespace fs = std::filesystem;

TEST_CASE("damage to the version that is not committed is said, and mended by who opens the store for writing") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    const store::Layout layout = layout_of(folders);
    train(folders, 1, 3, OpenMode::create);  // step 3 is in version 1, step 2 in version 0
    const std::string path = folders[1] + "/version-0.luwu";
    bool keeps_step_2 = false;
    std::string said;
    SUBCASE("its first page") {
        spoil(path, 0);
        keeps_step_2 = true;
        said = " at offset 0: the file header is damaged; nothing that is committed";
    }
    SUBCASE("its format's number") {
        spoil(path, 8, 1);
        keeps_step_2 = true;
        said = " at offset 0: the file header is damaged; nothing that is committed";
    }
    SUBCASE("cut off within the first page") {
        fs::resize_file(path, 100);
        said = " is truncated; nothing that is committed";
    }
    SUBCASE("cut off") {
        fs::resize_file(path, fs::file_size(path) - store::kPage);
        said = " is truncated; nothing that is committed";
    }
    SUBCASE("missing") {
        fs::remove(path);
        said = " is missing; nothing that is committed";
    }
    REQUIRE(findings_of(folders).size() == 1);
    CHECK(findings_of(folders)[0].find(path + said) == 0);
    check_at(folders, 3);
    CHECK(findings_of(folders).size() == 1);  // who reads changes nothing
    const std::uint64_t bytes = layout.version_bytes(1);
    {
        const ChunkStore store(folders, layout, kUuid, OpenMode::open);
        CHECK(store.findings().size() == 1);
        CHECK(store.before().has_value() == keeps_step_2);
    }
    CHECK(findings_of(folders).empty());
    CHECK(fs::file_size(path) == bytes);
    check_at(folders, 3);
    if (keeps_step_2) {
        ChunkStore(folders, layout, kUuid, OpenMode::open).go_back();
        check_at(folders, 2);
        train(folders, 3, 3);
    }
    train(folders, 4, 5);
    check_at(folders, 5);
}

TEST_CASE("damage to the committed version is refused by name, and going back to a snapshot does not need its file") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    const store::Layout layout = layout_of(folders);
    train(folders, 1, 2, OpenMode::create);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        CHECK(store::take_snapshot(store, false) == 2);
    }
    train(folders, 3, 3);
    const std::string path = folders[1] + "/version-1.luwu";
    std::string said;
    SUBCASE("missing") {
        fs::remove(path);
        said = path + " is missing; the values of the committed step are in it";
    }
    SUBCASE("its first page") {
        spoil(path, 0);
        said = path + " at offset 0: the file header's checksum is wrong";
    }
    for (const OpenMode mode : {OpenMode::open, OpenMode::go_on, OpenMode::read_only}) {
        CHECK(kind_of([&] { ChunkStore(folders, layout, kUuid, mode); }, said) == ErrorKind::corrupt);
    }
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::restore);
        store::restore_snapshot(store, 2);
    }
    check_at(folders, 2);
    train(folders, 3, 4);
    CHECK(findings_of(folders).empty());
    check_at(folders, 4);
}

TEST_CASE("another store's file in the place of a version that is not committed is left alone") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    train(folders, 1, 3, OpenMode::create);
    fs::copy_file(folders[0] + "/version-0.luwu", folders[1] + "/version-0.luwu", fs::copy_options::overwrite_existing);
    for (const OpenMode mode : {OpenMode::open, OpenMode::read_only}) {
        CHECK(kind_of([&] { ChunkStore(folders, layout_of(folders), kUuid, mode); },
                      "b/version-0.luwu is stripe 0 of 2 of this store") == ErrorKind::corrupt);
    }
}
