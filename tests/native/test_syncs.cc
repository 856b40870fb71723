// Syncs of the store: it makes the record that it trusts durable before it writes anything else, and syncs twice a
// folder for a step.
#include <doctest/doctest.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "support.h"

using namespace luwu;
using luwu::test::Dtypes;
using luwu::test::kUuid;
using luwu::test::Rig;
using luwu::test::Scratch;
using store::ChunkStore;
using store::OpenMode;

namespace {

// Names of the files that were synced, in order.
std::mutex log_mutex;
std::vector<std::string> synced;

std::vector<std::string> take_synced() {
    const std::lock_guard lock(log_mutex);
    return std::exchange(synced, {});
}

const Dtypes kFloat(kernels::Dtype::float32);
constexpr std::uint64_t kPlenty = 1U << 26;

}  // namespace

// Replaces the C library's fdatasync().
extern "C" int fdatasync(int descriptor) {
    std::array<char, PATH_MAX> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), path.data(), path.size() - 1) > 0) {
        const std::string text = path.data();
        const std::lock_guard lock(log_mutex);
        synced.push_back(text.substr(text.rfind('/') + 1));
    }
    return static_cast<int>(syscall(SYS_fdatasync, descriptor));
}

TEST_CASE("the record that is trusted is written again and synced before anything is overwritten") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder("a"), scratch.folder("b")};
    const store::Layout layout(test::small_shape(kFloat), 2);
    {
        Rig rig(folders, kFloat, 1, kPlenty, OpenMode::create);
        rig.initialise();
        REQUIRE(rig.run_all(1) == pipeline::kCommitted);
    }
    const std::uint64_t before = ChunkStore(folders, layout, kUuid, OpenMode::read_only).committed().opening;
    take_synced();
    {
        const ChunkStore read(folders, layout, kUuid, OpenMode::read_only);
        CHECK(take_synced().empty());
    }
    const ChunkStore store(folders, layout, kUuid, OpenMode::open);
    const std::vector<std::string> found = take_synced();
    CHECK(found == std::vector<std::string>(8, "commit.luwu"));  // two copies of two slots in two folders
    CHECK(ChunkStore(folders, layout, kUuid, OpenMode::read_only).committed().opening > before);
}

TEST_CASE("a step syncs the version that it wrote and the record, once in each folder") {
    const Scratch scratch;
    const std::vector<std::string> folders{scratch.folder("a"), scratch.folder("b")};
    Rig rig(folders, kFloat, 1, kPlenty, OpenMode::create);
    rig.initialise();
    for (std::uint64_t step = 1; step <= 2; ++step) {
        take_synced();
        REQUIRE(rig.run_all(step) == pipeline::kCommitted);
        const std::string version = step == 1 ? "version-1.luwu" : "version-0.luwu";
        CHECK(take_synced() == std::vector<std::string>{version, version, "commit.luwu", "commit.luwu"});
    }
}
