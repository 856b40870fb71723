// Snapshots: taken while training goes on, of files that are shared and never written to again; and restored.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>

#include "network.h"
#include "store/snapshots.h"
#include "support.h"

using namespace luwu;
using luwu::test::Dtypes;
using luwu::test::kind_of;
using luwu::test::kUuid;
using luwu::test::Rig;
using luwu::test::Scratch;
using store::ChunkStore;
using store::OpenMode;

namespace {

namespace fs = std::filesystem;

using Steps = std::vector<std::uint64_t>;
using Folders = std::vector<std::string>;

const Dtypes kFloat(kernels::Dtype::float32);
const Dtypes kLow(kernels::Dtype::bfloat16);
constexpr std::uint64_t kPlenty = 1U << 26;
constexpr auto kEngine = store::make_io_engine;
constexpr std::chrono::seconds kLongest{20};  // the longest wait; only broken code takes that long

Rig open_rig(const Folders& folders, OpenMode mode, pipeline::SnapshotSettings snapshots = {},
             const Dtypes& dtypes = kFloat, const kernels::Optimizer& optimizer = kernels::adamw,
             bool prepares = false) {
    return Rig(folders, dtypes, 1, kPlenty, mode, kEngine, prepares, optimizer, 2, snapshots);
}

void run_steps(Rig& rig, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t step = from; step <= to; ++step) REQUIRE(rig.run_all(step) == 1);
}

std::vector<test::BlockContents> snapshot_contents(const Folders& folders, std::uint64_t step,
                                                   const Dtypes& dtypes = kFloat) {
    return test::stored_contents(store::snapshot_folders(folders, step), dtypes);
}

void check_snapshot(const Folders& folders, std::uint64_t step) {
    CAPTURE(step);
    CHECK(test::equal(snapshot_contents(folders, step), test::expected_contents(kFloat, 1, step)));
}

struct stat look_at(const std::string& path) {
    struct stat info{};
    REQUIRE(stat(path.c_str(), &info) == 0);
    return info;
}

store::Layout layout_of(const Folders& folders) {
    return {test::small_shape(kFloat), static_cast<std::uint32_t>(folders.size())};
}

void restore(const Folders& folders, std::uint64_t step) {
    ChunkStore store(folders, layout_of(folders), kUuid, OpenMode::open);
    store::restore_snapshot(store, step);
    CHECK(store.committed().step == step);
}

// Counts unfinished files.
std::ptrdiff_t partials(const std::string& folder) {
    const fs::directory_iterator entries(folder);
    return std::count_if(fs::begin(entries), fs::end(entries),
                         [](const fs::directory_entry& entry) { return entry.path().extension() == ".partial"; });
}

}  // namespace

TEST_CASE("a snapshot is a second name of what is committed, and training leaves it as it is") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    Rig rig = open_rig(folders, OpenMode::create);
    rig.initialise();
    run_steps(rig, 1, 2);
    CHECK(store::take_snapshot(rig.store(), true) == 2);
    for (const std::string& folder : folders) {
        for (const char* name : {"/version-0.luwu", "/frozen.luwu"}) {
            CHECK(look_at(folder + name).st_ino == look_at(folder + "/snapshots/2" + name).st_ino);
        }
        CHECK_FALSE(fs::exists(folder + "/snapshots/2/version-1.luwu"));
    }
    run_steps(rig, 3, 3);  // to the other version
    CHECK(look_at(folders[0] + "/version-0.luwu").st_nlink == 2);
    run_steps(rig, 4, 5);
    for (const std::string& folder : folders) {
        CHECK(look_at(folder + "/version-0.luwu").st_nlink == 1);
        CHECK(look_at(folder + "/snapshots/2/version-0.luwu").st_nlink == 1);
        CHECK(look_at(folder + "/frozen.luwu").st_nlink == 2);
        CHECK_FALSE(fs::exists(folder + "/spare-0.luwu"));
    }
    check_snapshot(folders, 2);
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 5)));
}

TEST_CASE("every step can be kept, the newest stay, and a full copy of none is made") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    for (const std::uint64_t every : {1, 2, 3}) {
        fs::remove_all(folders[0]);
        fs::remove_all(folders[1]);
        fs::create_directories(folders[0]);
        fs::create_directories(folders[1]);
        {
            Rig rig = open_rig(folders, OpenMode::create, {every, 2});
            rig.initialise();
            run_steps(rig, 1, 4 * every);
        }
        CHECK(store::snapshot_steps(folders) == Steps{3 * every, 4 * every});
        check_snapshot(folders, 3 * every);
        check_snapshot(folders, 4 * every);
        CHECK(look_at(folders[1] + "/frozen.luwu").st_nlink == 3);
    }
}

TEST_CASE("a step that is rolled back and tried again touches no snapshot") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create, {1, 0});
        rig.initialise();
        run_steps(rig, 1, 2);
        for (int attempt = 0; attempt < 3; ++attempt) CHECK(rig.run_all(3, true) == pipeline::kNotFinite);
        run_steps(rig, 3, 4);
    }
    CHECK(store::snapshot_steps(folders) == Steps{1, 2, 3, 4});
    for (std::uint64_t step = 1; step <= 4; ++step) check_snapshot(folders, step);
}

TEST_CASE("snapshots of clipped steps are whole, whether updated before or after they were answered") {
    for (const double max_norm : {1e9, 0.5}) {  // none clips, and all do
        const Scratch scratch;
        const Folders folders{scratch.folder()};
        {
            Rig rig = open_rig(folders, OpenMode::create, {2, 0});
            rig.initialise();
            rig.max_norm = max_norm;
            run_steps(rig, 1, 5);
        }
        REQUIRE(store::snapshot_steps(folders) == Steps{2, 4});
        for (const std::uint64_t step : {2, 4}) {
            CHECK(test::equal(snapshot_contents(folders, step),
                              test::expected_contents(kFloat, 1, step, {}, kernels::adamw, max_norm)));
        }
    }
}

TEST_CASE("what is restored is trained on to the same bits, as often as one likes") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    {
        Rig rig = open_rig(folders, OpenMode::create, {2, 0});
        rig.initialise();
        run_steps(rig, 1, 5);
    }
    for (const std::uint64_t step : {2, 4, 4}) {
        restore(folders, step);
        CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, step)));
        {
            Rig rig = open_rig(folders, OpenMode::open, {2, 0});
            CHECK(rig.pipeline().stats().attempts == step);
            CHECK_FALSE(rig.store().before().has_value());
            run_steps(rig, step + 1, 6);
        }
        CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 6)));
        CHECK(store::snapshot_steps(folders) == Steps{2, 4, 6});
        for (const std::uint64_t kept : {2, 4, 6}) check_snapshot(folders, kept);
    }
}

TEST_CASE("the snapshots that are kept are those taken last, after a restore, too") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create, {2, 2});
        rig.initialise();
        run_steps(rig, 1, 6);
    }
    CHECK(store::snapshot_steps(folders) == Steps{4, 6});
    {
        Rig rig = open_rig(folders, OpenMode::open);
        CHECK(store::take_snapshot(rig.store(), true) == 6);
        run_steps(rig, 7, 7);
        CHECK(store::take_snapshot(rig.store(), true) == 7);  // not every 2 steps: nobody removes it
    }
    restore(folders, 4);
    store::remove_snapshot(folders, 4);
    CHECK(kind_of([&] { store::remove_snapshot(folders, 4); }, "found those of step 6, 7") == ErrorKind::invalid);
    {
        Rig rig = open_rig(folders, OpenMode::open, {1, 2});
        run_steps(rig, 5, 5);
    }
    CHECK(store::snapshot_steps(folders) == Steps{4, 5});  // the one of 4 was due at the start
    check_snapshot(folders, 4);
    check_snapshot(folders, 5);
}

TEST_CASE("a snapshot keeps the loss scale, 8-bit states and what lies beside the chunks") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    const Dtypes dtypes(kernels::Dtype::float16, kernels::Dtype::bfloat16);
    std::ofstream(folders[0] + "/manifest.json") << "{}";
    fs::create_directories(folders[0] + "/model");
    std::ofstream(folders[0] + "/model/config.json") << "{\"a\": 1}";
    const kernels::Optimizer& optimizer = *kernels::find_optimizer("adamw8bit");
    {
        Rig rig = open_rig(folders, OpenMode::create, {}, dtypes, optimizer);
        rig.initialise();
        rig.loss_scale = {1024, 3};
        run_steps(rig, 1, 1);
        rig.loss_scale = {2048, 0};
        store::take_snapshot(rig.store(), true);
        run_steps(rig, 2, 3);
    }
    const Folders inside = store::snapshot_folders(folders, 1);
    CHECK(fs::file_size(inside[0] + "/manifest.json") == 2);
    CHECK(fs::file_size(inside[0] + "/model/config.json") == 8);
    const store::Layout layout(test::small_shape(dtypes, optimizer), 1);
    const ChunkStore snapshot(inside, layout, kUuid, OpenMode::read_only);
    CHECK(snapshot.committed().step == 1);
    REQUIRE(snapshot.committed().loss_scale.has_value());
    CHECK(*snapshot.committed().loss_scale == store::LossScale{1024, 3});
    CHECK(test::equal(test::stored_contents(inside, dtypes, optimizer),
                      test::expected_contents(dtypes, 1, 1, {}, optimizer, std::nullopt, 1024)));
}

TEST_CASE("a compacted store can be kept, trained on and compacted again without harm to the snapshot") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create);
        rig.initialise();
        run_steps(rig, 1, 3);
    }
    const store::Layout layout = layout_of(folders);
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        CHECK(store.compact() > 0);
        CHECK(store::take_snapshot(store, false) == 3);
    }
    {
        Rig rig = open_rig(folders, OpenMode::open);
        rig.store().make_room();
        CHECK(fs::exists(folders[0] + "/spare-1.luwu"));  // step 3 is in version 1
        run_steps(rig, 4, 4);
    }
    {
        ChunkStore store(folders, layout, kUuid, OpenMode::open);
        CHECK(store.committed().step == 4);
        CHECK(store.compact() == 0);  // the other version is the snapshot's, and the spare goes unused
        CHECK_FALSE(fs::exists(folders[0] + "/spare-1.luwu"));
    }
    check_snapshot(folders, 3);
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 4)));
    {
        Rig rig = open_rig(folders, OpenMode::open);
        run_steps(rig, 5, 6);
    }
    check_snapshot(folders, 3);
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 6)));
}

TEST_CASE("a server that goes back by a step writes to no snapshot of the step that it left") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create);
        rig.initialise();
        run_steps(rig, 1, 3);
        CHECK(store::take_snapshot(rig.store(), true) == 3);
    }
    {
        ChunkStore store(folders, layout_of(folders), kUuid, OpenMode::open);
        store.go_back();
        CHECK(store.committed().step == 2);
    }
    {
        Rig rig = open_rig(folders, OpenMode::open);
        CHECK(rig.run_step(0, 7) == 1);  // another third step
    }
    check_snapshot(folders, 3);
    Rig rig = open_rig(folders, OpenMode::open);
    CHECK(store::take_snapshot(rig.store(), true) == 3);  // in the place of the other
    CHECK(test::equal(snapshot_contents(folders, 3), test::stored_contents(folders, kFloat)));
    CHECK_FALSE(test::equal(snapshot_contents(folders, 3), test::expected_contents(kFloat, 1, 3)));
}

TEST_CASE("what a crash leaves is removed, and nothing else") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    {
        Rig rig = open_rig(folders, OpenMode::create);
        rig.initialise();
        run_steps(rig, 1, 1);
        CHECK(store::take_snapshot(rig.store(), true) == 1);
    }
    const store::Layout layout = layout_of(folders);
    const ChunkStore seen(folders, layout, kUuid, OpenMode::read_only);
    const std::string inside = folders[0] + "/snapshots/";
    const auto entries = [&](const std::string& folder) {
        const fs::directory_iterator names(folder + "/snapshots");
        return std::distance(fs::begin(names), fs::end(names));
    };
    {
        const store::PendingSnapshot pending(seen);
        CHECK(entries(folders[0]) == 2);
        store::remove_remains(folders);  // not while it is being taken
        CHECK(entries(folders[0]) == 2);
    }
    CHECK(entries(folders[0]) == 1);
    fs::create_directories(inside + "1.99-0.partial");
    fs::copy(folders[1] + "/snapshots/1", folders[1] + "/snapshots/9");  // named, as the second is before the first
    CHECK(store::snapshot_steps(folders) == Steps{1});
    store::remove_remains(folders);
    CHECK(entries(folders[0]) == 1);
    CHECK(entries(folders[1]) == 1);
    check_snapshot(folders, 1);
    store::remove_snapshot(folders, 1);
    CHECK(entries(folders[0]) == 0);
    CHECK(entries(folders[1]) == 0);
}

TEST_CASE("folders that somebody else made beside the snapshots stay") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    {
        Rig rig = open_rig(folders, OpenMode::create);
        rig.initialise();
        run_steps(rig, 1, 1);
        CHECK(store::take_snapshot(rig.store(), true) == 1);
    }
    const Folders others{"1000-good", "1.partial", "1.99-0.partial.kept", "before 1.99-0.partial", "01"};
    for (const std::string& folder : folders) {
        for (const std::string& name : others) fs::create_directories(folder + "/snapshots/" + name);
        fs::create_directories(folder + "/snapshots/1.99-0.partial");
    }
    store::remove_remains(folders);
    for (const std::string& folder : folders) {
        for (const std::string& name : others) {
            CAPTURE(name);
            CHECK(fs::exists(folder + "/snapshots/" + name));
        }
        CHECK_FALSE(fs::exists(folder + "/snapshots/1.99-0.partial"));
    }
    CHECK(store::snapshot_steps(folders) == Steps{1});
    check_snapshot(folders, 1);
}

TEST_CASE("what somebody else made with a number for its name is no snapshot, and stays") {
    const Scratch scratch;
    const Folders folders{scratch.folder("a"), scratch.folder("b")};
    const auto notes = [](const std::string& folder, std::uint64_t step) {
        return folder + "/snapshots/" + std::to_string(step) + "/notes.txt";
    };
    const auto check_notes = [&] {
        CHECK(fs::is_regular_file(folders[0] + "/snapshots/5"));
        CHECK(fs::exists(notes(folders[0], 2)));
        CHECK(fs::exists(notes(folders[1], 3)));
        CHECK(fs::exists(notes(folders[1], 8)));
    };
    for (const std::string& folder : folders) fs::create_directories(folder + "/snapshots");
    std::ofstream(folders[0] + "/snapshots/5") << "a user's file";
    const std::vector<std::string> kept{notes(folders[0], 2), notes(folders[1], 3), notes(folders[1], 8)};
    for (const std::string& path : kept) {
        fs::create_directories(fs::path(path).parent_path());
        std::ofstream(path) << "a user's notes";
    }
    {
        Rig rig = open_rig(folders, OpenMode::create, {1, 2});
        rig.initialise();
        const auto failed_at = [&rig](std::uint64_t step) {
            return rig.snapshot_stats().failure.find("the snapshot of step " + std::to_string(step) +
                                                     " was given up: expected") != std::string::npos;
        };
        for (std::uint64_t step = 1; step <= 5; ++step) {
            run_steps(rig, step, step);
            test::wait_until([&] {
                const bool given_up = step == 2 || step == 3 || step == 5;
                return given_up ? failed_at(step) : rig.snapshot_stats().step == step;
            });
        }
        CHECK(store::snapshot_steps(folders) == Steps{1, 4});
        const std::string place = folders[0] + "/snapshots/5, found something else";
        CHECK(kind_of([&] { store::take_snapshot(rig.store(), true); }, place) == ErrorKind::invalid);
        run_steps(rig, 6, 8);
    }
    CHECK(store::snapshot_steps(folders) == Steps{6, 7});
    store::remove_remains(folders);
    CHECK(kind_of([&] { store::remove_snapshot(folders, 5); }, "those of step 6, 7") == ErrorKind::invalid);
    check_notes();
    for (const std::string& folder : folders) CHECK(partials(folder + "/snapshots") == 0);
    store::remove_snapshot(folders, 7);
    check_snapshot(folders, 6);
    check_notes();
}

TEST_CASE("a disk without room gives the snapshot up and nothing else") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    Rig rig = open_rig(folders, OpenMode::create);
    rig.initialise();
    run_steps(rig, 1, 1);
    {
        const auto before = std::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
        const rlimit small{store::kPage, limit.rlim_max};
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
        const ErrorKind kind = kind_of([&] { store::take_snapshot(rig.store(), true); }, "remove a snapshot");
        REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        std::signal(SIGXFSZ, before);
        CHECK(kind == ErrorKind::no_space);
    }
    CHECK(store::snapshot_steps(folders).empty());
    CHECK(partials(folders[0]) == 0);
    run_steps(rig, 2, 3);
    CHECK(store::take_snapshot(rig.store(), true) == 3);
    check_snapshot(folders, 3);
}

TEST_CASE("a snapshot that cannot be taken when it is due is given up, said, and training goes on") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create, {2, 0});
        rig.initialise();
        std::ofstream(folders[0] + "/snapshots") << "in the way";
        run_steps(rig, 1, 3);
        CHECK(rig.snapshot_stats().failure.find("the snapshot of step 2 was given up") != std::string::npos);
        fs::remove(folders[0] + "/snapshots");
        run_steps(rig, 4, 5);
    }
    CHECK(store::snapshot_steps(folders) == Steps{4});
    check_snapshot(folders, 4);
    CHECK(test::equal(test::stored_contents(folders, kFloat), test::expected_contents(kFloat, 1, 5)));
}

TEST_CASE("a process that holds locks on a store's files stops neither its training nor its snapshots") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    std::vector<store::File> held;
    Rig rig = open_rig(folders, OpenMode::create, {1, 0});
    rig.initialise();
    for (const fs::directory_entry& entry : fs::directory_iterator(folders[0])) {
        if (entry.path().filename() == "lock" || !entry.is_regular_file()) continue;
        held.emplace_back(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC), entry.path().string());
        REQUIRE(flock(held.back().descriptor(), LOCK_EX | LOCK_NB) == 0);
    }
    REQUIRE(held.size() == 4);  // two versions, the frozen chunks and the commits
    std::future<void> steps = std::async(std::launch::async, [&] { run_steps(rig, 1, 4); });
    const bool ended = steps.wait_for(kLongest) == std::future_status::ready;
    held.clear();  // otherwise a waiter for a lock would wait for ever
    steps.get();
    REQUIRE(ended);
    CHECK(rig.snapshot_stats().failure.empty());
}

TEST_CASE("a process that holds locks on a store's folders costs a snapshot and not the training") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    fs::create_directories(folders[0] + "/snapshots");
    std::string locked, said;
    std::chrono::milliseconds patience{1};
    SUBCASE("that remains are removed under, which a step does not wait for") {
        patience = std::chrono::hours(1);
        locked = folders[0] + "/snapshots";
        said = "the snapshot of step 2 was given up: another process holds a lock on the folder " + locked + ";";
    }
    SUBCASE("that names are given under") {
        locked = folders[0];
        said = "the snapshot of step 2 was given up: another process has held a lock on the folder " + locked +
               " for 1 ms;";
    }
    Rig rig = open_rig(folders, OpenMode::create, {2, 0, patience});
    rig.initialise();
    store::File held(open(locked.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), locked);
    REQUIRE(flock(held.descriptor(), LOCK_EX | LOCK_NB) == 0);
    std::future<void> steps = std::async(std::launch::async, [&] { run_steps(rig, 1, 3); });
    const bool ended = steps.wait_for(kLongest) == std::future_status::ready;
    if (ended) test::wait_until([&rig] { return !rig.snapshot_stats().failure.empty(); });
    held = store::File();  // otherwise a waiter for a lock would wait for ever
    steps.get();
    REQUIRE(ended);
    CHECK(rig.snapshot_stats().failure.find(said) != std::string::npos);
    run_steps(rig, 4, 4);
    test::wait_until([&folders] { return store::snapshot_steps(folders) == Steps{4}; });
}

TEST_CASE("a file for training to write to can be reserved by several at the same time") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    Rig rig = open_rig(folders, OpenMode::create);
    rig.initialise();
    run_steps(rig, 1, 1);
    const ChunkStore other(folders, layout_of(folders), kUuid, OpenMode::read_only);  // as another process has it
    for (int round = 0; round < 20; ++round) {
        std::future<void> one = std::async(std::launch::async, [&] { rig.store().reserve_spare(0); });
        other.reserve_spare(0);
        one.get();
        CHECK(partials(folders[0]) == 0);
        REQUIRE(fs::remove(folders[0] + "/spare-0.luwu"));
    }
}

TEST_CASE("a start removes what a crash left of a file that was being reserved") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    {
        Rig rig = open_rig(folders, OpenMode::create);
        rig.initialise();
    }
    const std::string left = folders[0] + "/spare-0.luwu.0123456789abcdef.partial";
    const std::string foreign = folders[0] + "/spare-notes.partial";
    for (const std::string& path : {left, foreign}) std::ofstream(path) << "half";
    ChunkStore store(folders, layout_of(folders), kUuid, OpenMode::open);
    store.make_room();
    CHECK_FALSE(fs::exists(left));
    CHECK(fs::exists(foreign));
}

TEST_CASE("snapshots are refused by name where there are none, and opened to be read alone") {
    const Scratch scratch;
    const Folders folders{scratch.folder()};
    const store::Layout layout = layout_of(folders);
    ChunkStore store(folders, layout, kUuid, OpenMode::create);
    CHECK(kind_of([&] { store::take_snapshot(store, false); }, "has no values yet") == ErrorKind::empty);
    CHECK(kind_of([&] { store::restore_snapshot(store, 4); }, "a snapshot of step 4, found none") ==
          ErrorKind::invalid);
    store::CommitRecord record;
    record.counts.assign(layout.block_count(), 0);
    store.commit(record);
    CHECK(store::take_snapshot(store, false) == 0);
    const Folders inside = store::snapshot_folders(folders, 0);
    CHECK(kind_of([&] { ChunkStore(inside, layout, kUuid, OpenMode::open); }, "is a snapshot, which is only read") ==
          ErrorKind::invalid);
    CHECK_FALSE(fs::exists(inside[0] + "/lock"));
    ChunkStore snapshot(inside, layout, kUuid, OpenMode::read_only);
    CHECK(kind_of([&] { snapshot.prepare_to_write(); }, "opened to be read") == ErrorKind::order);
}
