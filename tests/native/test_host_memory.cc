#include <doctest/doctest.h>

#include <fstream>

#include "device/host_memory.h"
#include "fabric/core/shared_memory.h"
#include "memory_maps.h"
#include "support.h"

using namespace luwu;

namespace {

constexpr std::uint64_t kBytes = 8U << 20;

}  // namespace

TEST_CASE("a device's NUMA node is what the system says of its place on the bus") {
    const test::Scratch scratch;
    const std::filesystem::path devices = scratch.folder("devices");
    const auto write = [&](const std::string& name, const std::string& text) {
        std::filesystem::create_directories(devices / name);
        std::ofstream(devices / name / "numa_node") << text;
    };
    write("0000:3b:00.0", "1\n");
    write("0000:3c:00.0", "-1\n");
    write("0000:3d:00.0", "none\n");
    CHECK(device::numa_node_of("0000:3B:00.0", devices) == 1);
    CHECK_FALSE(device::numa_node_of("0000:3C:00.0", devices));
    CHECK_FALSE(device::numa_node_of("0000:3D:00.0", devices));
    CHECK_FALSE(device::numa_node_of("0000:3E:00.0", devices));
}

TEST_CASE("shared memory prefers a device's node and huge pages, and keeps working where there are none") {
    const fabric::MemoryFile file("near", kBytes);
    const fabric::Mapping memory(file.descriptor(), fabric::MapMode::shared);
    device::place_near({memory.data(), kBytes}, 900);              // no such node
    device::place_near({memory.data() + 1088, kBytes - 1088}, 0);  // an arena begins on a cache line of its worker's
    CHECK(test::flags_at(memory.data()).find(" hg") != std::string::npos);
    const auto policy = test::policy_at(memory.data());
    if (!policy) {
        MESSAGE("SKIPPED: this system does not tell how it chooses NUMA nodes");
        return;
    }
    CHECK(policy->mode == MPOL_PREFERRED);
    CHECK(policy->nodes[0] == 1);
    // The file has it: another process's mapping is served the same.
    const fabric::Mapping other(file.descriptor(), fabric::MapMode::shared);
    const auto served = test::policy_at(other.data());
    REQUIRE(served);
    CHECK(served->mode == MPOL_PREFERRED);
    std::fill_n(memory.data(), kBytes, std::byte{1});
    CHECK(other.data()[kBytes - 1] == std::byte{1});
}
