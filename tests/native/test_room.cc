// A full disk pauses a run: a write that finds no room waits, and the bits are those of a run that always had room.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>

#include "pipeline/room.h"
#include "support.h"

using namespace luwu;
using luwu::test::Rig;
using luwu::test::Scratch;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr auto kLow = kernels::Dtype::bfloat16;
constexpr std::uint64_t kPlenty = 1U << 28;
constexpr double kNever = 1e9;
constexpr double kAlways = 5;  // norms here are above 80
constexpr std::chrono::hours kLong{1};

// A disk of 16 MiB that a test fills and clears.
class SmallDisk {
  public:
    explicit SmallDisk(const Scratch& scratch) : folder_(scratch.folder("disk")) {
        mounted_ = mount("luwu-test", folder_.c_str(), "tmpfs", 0, "size=16m") == 0;
        if (!mounted_) MESSAGE("skipped: mounting a small disk needs root");
    }
    ~SmallDisk() {
        if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
    }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;

    [[nodiscard]] bool mounted() const { return mounted_; }
    [[nodiscard]] const std::string& folder() const { return folder_; }

    void fill() const {
        struct statvfs info{};
        REQUIRE(statvfs(folder_.c_str(), &info) == 0);
        const int file = open(filler().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        REQUIRE(fallocate(file, 0, 0, static_cast<off_t>(info.f_bavail * info.f_frsize)) == 0);
        close(file);
    }
    void clear() const { std::filesystem::remove(filler()); }
    // Takes back the room that a file has reserved, as on a file system that reserves nothing.
    void punch(const std::string& name) const {
        const int file = open((folder_ + name).c_str(), O_RDWR | O_CLOEXEC);
        const auto bytes = static_cast<off_t>(std::filesystem::file_size(folder_ + name));
        REQUIRE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, store::kPage, bytes - store::kPage) == 0);
        close(file);
    }

  private:
    [[nodiscard]] std::string filler() const { return folder_ + "/filler"; }

    std::string folder_;
    bool mounted_ = false;
};

std::string written_next(Rig& rig) {
    return "/version-" + std::to_string(1 - rig.store().committed().version) + ".luwu";
}

pipeline::RoomWait wait_until_paused(const Rig& rig) {
    while (true) {
        const pipeline::PipelineStats stats = rig.pipeline().stats();
        if (stats.waits_for_room) return *stats.waits_for_room;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::unique_ptr<Rig> make_rig(const SmallDisk& disk, kernels::Dtype dtype, std::uint32_t workers, std::uint64_t memory,
                              std::chrono::nanoseconds wait = kLong, std::uint64_t commit_point_every = 1) {
    auto rig = std::make_unique<Rig>(
        std::vector<std::string>{disk.folder()}, dtype, workers, memory, store::OpenMode::create, store::make_io_engine,
        false, kernels::adamw, 2, pipeline::SnapshotSettings{}, wait,
        [&](pipeline::PipelineSettings& settings) { settings.commit_points.every = commit_point_every; });
    rig->initialise();
    return rig;
}

// Runs a step that finds the disk full, and goes on once it is cleared.
void run_paused(const SmallDisk& disk, Rig& rig, std::uint64_t step) {
    auto outcome = std::async(std::launch::async, [&] { return rig.run_all(step); });
    const pipeline::RoomWait wait = wait_until_paused(rig);
    CHECK(wait.folder == disk.folder());
    CHECK(wait.needed_bytes >= store::kPage);
    CHECK(wait.until > std::chrono::system_clock::now());
    disk.clear();
    CHECK(outcome.get() == 1);
    rig.pipeline().wait_until_written();
    CHECK_FALSE(rig.pipeline().stats().waits_for_room.has_value());
}

}  // namespace

TEST_CASE("a write that finds the disk full waits for room, and the bits are the undisturbed run's") {
    for (const std::optional<double> max_norm :
         {std::optional<double>(), std::optional(kNever), std::optional(kAlways)}) {
        for (const std::uint32_t workers : {1U, 3U}) {
            CAPTURE(max_norm.value_or(0));
            CAPTURE(workers);
            const Scratch scratch;
            const SmallDisk disk(scratch);
            if (!disk.mounted()) return;
            {
                const auto rig = make_rig(disk, kLow, workers, Rig::minimum_bytes(kLow, workers));
                rig->max_norm = max_norm;
                CHECK(rig->run_all(1) == 1);
                for (std::uint64_t step = 2; step <= 3; ++step) {
                    rig->pipeline().wait_until_written();
                    disk.punch(written_next(*rig));
                    disk.fill();
                    run_paused(disk, *rig, step);
                }
                CHECK(rig->run_all(4) == 1);
            }
            CHECK(test::equal(test::stored_contents({disk.folder()}, kLow),
                              test::expected_contents(kLow, workers, 4, {}, kernels::adamw, max_norm)));
        }
    }
}

TEST_CASE("gradients that are to be kept on a full disk wait for room") {
    const Scratch scratch;
    const SmallDisk disk(scratch);
    if (!disk.mounted()) return;
    {
        const auto rig = make_rig(disk, kLow, 2, Rig::minimum_bytes(kLow, 2));
        rig->max_norm = kAlways;
        disk.fill();
        run_paused(disk, *rig, 1);
        CHECK(rig->run_all(2) == 1);
    }
    CHECK(test::equal(test::stored_contents({disk.folder()}, kLow),
                      test::expected_contents(kLow, 2, 2, {}, kernels::adamw, kAlways)));
}

TEST_CASE("what a copy of hard links shares stays while the file in its place waits for room") {
    const Scratch scratch;
    const SmallDisk disk(scratch);
    if (!disk.mounted()) return;
    {
        const auto rig = make_rig(disk, kFloat, 1, kPlenty);
        CHECK(rig->run_all(1) == 1);
        std::filesystem::create_hard_link(disk.folder() + written_next(*rig), disk.folder() + "/copy");
        disk.fill();
        run_paused(disk, *rig, 2);
        CHECK(rig->run_all(3) == 1);
    }
    CHECK(test::equal(test::stored_contents({disk.folder()}, kFloat), test::expected_contents(kFloat, 1, 3)));
}

TEST_CASE("a disk that stays full fails the run when the time is over, and the last commit stays") {
    const Scratch scratch;
    const SmallDisk disk(scratch);
    if (!disk.mounted()) return;
    {
        const auto rig = make_rig(disk, kFloat, 2, kPlenty, std::chrono::milliseconds(20));
        CHECK(rig->run_all(1) == 1);
        disk.punch(written_next(*rig));
        disk.fill();
        CHECK(rig->run_all(2) == -1);
        REQUIRE(rig->pipeline().failure().has_value());
        CHECK(rig->pipeline().failure()->kind() == ErrorKind::no_space);
        CHECK_FALSE(rig->pipeline().stats().waits_for_room.has_value());
    }
    CHECK(test::equal(test::stored_contents({disk.folder()}, kFloat), test::expected_contents(kFloat, 2, 1)));
}

TEST_CASE("a run that is ended while it is paused ends at once where nobody waits for room") {
    for (const bool clips : {false, true}) {
        CAPTURE(clips);
        const Scratch scratch;
        const SmallDisk disk(scratch);
        if (!disk.mounted()) return;
        {
            const auto rig = make_rig(disk, kLow, 1, Rig::minimum_bytes(kLow, 1));
            if (clips) rig->max_norm = kAlways;
            CHECK(rig->run_all(1) == 1);
            rig->pipeline().wait_until_written();
            disk.punch(written_next(*rig));
            disk.fill();
            auto outcome = std::async(std::launch::async, [&] { return rig->run_all(2); });
            static_cast<void>(wait_until_paused(*rig));
            rig->pipeline().fail(Error(ErrorKind::server, "the server was closed"));
            static_cast<void>(outcome.get());
            rig->pipeline().stop_waiting_for_room();
            rig->pipeline().wait_until_written();
        }
        CHECK(test::equal(
            test::stored_contents({disk.folder()}, kLow),
            test::expected_contents(kLow, 1, 1, {}, kernels::adamw, clips ? std::optional(kAlways) : std::nullopt)));
    }
}

TEST_CASE("steps that are in memory alone wait for room at the end, or are given up") {
    for (const bool given_up : {false, true}) {
        CAPTURE(given_up);
        const Scratch scratch;
        const SmallDisk disk(scratch);
        if (!disk.mounted()) return;
        {
            const auto rig = make_rig(disk, kLow, 1, kPlenty, kLong, 0);
            for (std::uint64_t step = 1; step <= 3; ++step) CHECK(rig->run_all(step) == 1);
            disk.punch(written_next(*rig));
            disk.fill();
            if (given_up) rig->pipeline().fail(Error(ErrorKind::worker_lost, "worker 1 was lost"));
            CHECK_FALSE(rig->pipeline().make_durable(std::chrono::milliseconds(0)));
            CHECK(wait_until_paused(*rig).folder == disk.folder());
            CHECK_FALSE(rig->pipeline().make_durable(std::chrono::milliseconds(1)));
            if (given_up) {
                rig->pipeline().stop_waiting_for_room();
            } else {
                disk.clear();
            }
            const auto error = rig->pipeline().wait_until_written();
            CHECK(error.has_value() == given_up);
            if (error) CHECK(error->kind() == ErrorKind::no_space);
        }
        CHECK(test::equal(test::stored_contents({disk.folder()}, kLow),
                          test::expected_contents(kLow, 1, given_up ? 0 : 3)));
    }
}

TEST_CASE("what is not to be tried again, and any other error, is thrown at once") {
    pipeline::Room room(kLong);
    for (const Error& error :
         {Error(ErrorKind::no_space, "sync", {"/disk/file", 0, false}), Error(ErrorKind::io, "io")}) {
        int attempts = 0;
        CHECK(test::kind_of([&] {
                  room.retry([&] {
                      ++attempts;
                      throw error;
                  });
              }) == error.kind());
        CHECK(attempts == 1);
        CHECK_FALSE(room.waits().has_value());
    }
}

TEST_CASE("a snapshot that finds no room is given up, and training goes on") {
    const Scratch scratch;
    const SmallDisk disk(scratch);
    if (!disk.mounted()) return;
    {
        Rig rig({disk.folder()}, kFloat, 1, kPlenty, store::OpenMode::create, store::make_io_engine, false,
                kernels::adamw, 2, {1, 0}, kLong);
        rig.initialise();
        disk.fill();
        CHECK(rig.run_all(1) == 1);
        while (rig.snapshot_stats().failure.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(rig.snapshot_stats().failure.find("the snapshot of step 1 was given up") != std::string::npos);
        CHECK_FALSE(rig.pipeline().stats().waits_for_room.has_value());
        disk.clear();
        CHECK(rig.run_all(2) == 1);
        while (rig.snapshot_stats().taken == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(test::equal(test::stored_contents({disk.folder()}, kFloat), test::expected_contents(kFloat, 1, 2)));
}
