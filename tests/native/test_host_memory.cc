#include <doctest/doctest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "device/host_memory.h"
#include "fabric/core/shared_memory.h"
#include "support.h"

using namespace luwu;

namespace {

constexpr std::uint64_t kBytes = 8U << 20;

// The line VmFlags of /proc/self/smaps for the mapping that begins here.
std::string flags_of(const std::byte* begin) {
    std::ostringstream address;
    address << std::hex << reinterpret_cast<std::uintptr_t>(begin) << '-';
    std::ifstream maps("/proc/self/smaps");
    bool found = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.starts_with(address.str())) found = true;
        if (found && line.starts_with("VmFlags:")) return line;
    }
    return "";
}

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
    CHECK(flags_of(memory.data()).find(" hg") != std::string::npos);
    int policy = -1;
    std::array<unsigned long, 16> nodes{};
    const long told = syscall(SYS_get_mempolicy, &policy, nodes.data(), 1024, memory.data(), MPOL_F_ADDR);
    if (told != 0) {
        MESSAGE("SKIPPED: this system does not tell how it chooses NUMA nodes");
        return;
    }
    CHECK(policy == MPOL_PREFERRED);
    CHECK(nodes[0] == 1);
    // The file has it: another process's mapping is served the same.
    const fabric::Mapping other(file.descriptor(), fabric::MapMode::shared);
    REQUIRE(syscall(SYS_get_mempolicy, &policy, nodes.data(), 1024, other.data(), MPOL_F_ADDR) == 0);
    CHECK(policy == MPOL_PREFERRED);
    std::fill_n(memory.data(), kBytes, std::byte{1});
    CHECK(other.data()[kBytes - 1] == std::byte{1});
}
