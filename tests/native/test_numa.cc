#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "fabric/core/shared_memory.h"
#include "memory_maps.h"
#include "store/aligned_buffer.h"
#include "store/numa.h"
#include "support.h"

using namespace luwu;

namespace {

constexpr std::uint64_t kBytes = 8U << 20;

int mode_at(const std::byte* memory) { return test::policy_at(memory)->mode; }

void write_node(const std::filesystem::path& system, const std::string& name, const std::string& processors,
                std::uint64_t kibibytes) {
    const auto folder = system / "devices/system/node" / name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "cpulist") << processors << '\n';
    std::ofstream(folder / "meminfo") << "Node 1 MemTotal:       " << kibibytes << " kB\nNode 1 MemFree: 7 kB\n";
}

}  // namespace

TEST_CASE("NUMA nodes are those with memory and processors of this process") {
    const test::Scratch scratch;
    const std::vector<int> all = store::numa_nodes(scratch.folder("nothing"))[0].processors;
    REQUIRE_FALSE(all.empty());
    const std::string first = std::to_string(all.front());
    const std::string rest = std::to_string(all.front() + 1) + "-2000";

    const std::filesystem::path system = scratch.folder("system");
    write_node(system, "node10", first + ",3000-3007", 1024);  // others' processors are left out
    write_node(system, "node2", rest, 1024);
    write_node(system, "node11", "", 1024);  // memory without processors
    write_node(system, "node12", "3000", 0);
    write_node(system, "nodes", "0-4000", 1024);
    const std::filesystem::path process = scratch.folder("process");
    const auto allow = [&](const std::string& list) {
        std::ofstream(process / "status") << "Name:\tluwu\nMems_allowed_list:\t" << list << "\n";
    };
    const auto nodes = store::numa_nodes(system, process);
    allow("0-12");
    CHECK(store::numa_nodes(system, process) == nodes);
    std::vector<store::NumaNode> expected{{10, {all.front()}}};
    if (all.size() > 1) expected.insert(expected.begin(), {2, {all.begin() + 1, all.end()}});
    CHECK(nodes == expected);

    allow("2,11");  // memory that this process may not take
    CHECK(store::numa_nodes(system, process) == std::vector<store::NumaNode>{{0, all}});
    allow("0-12");
    write_node(system, "node10", first, 0);  // processors without memory
    CHECK(store::numa_nodes(system, process) == std::vector<store::NumaNode>{{0, all}});
}

TEST_CASE("a disk's NUMA node is that of the device above it on the bus") {
    const test::Scratch scratch;
    const std::filesystem::path system = scratch.folder("system");
    const std::filesystem::path folder = scratch.folder("store");
    struct stat info{};
    REQUIRE(stat(folder.c_str(), &info) == 0);
    const auto bus = system / "devices/pci0000:00/0000:00:04.0";
    std::filesystem::create_directories(bus / "nvme/nvme0/nvme0n1/nvme0n1p1");
    std::filesystem::create_directories(system / "dev/block");
    CHECK_FALSE(store::numa_node_of_disk(folder, system));  // no disk, such as a file system in the network
    std::filesystem::create_directory_symlink(
        bus / "nvme/nvme0/nvme0n1/nvme0n1p1",
        system / "dev/block" / (std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev))));
    CHECK_FALSE(store::numa_node_of_disk(folder, system));
    std::ofstream(bus / "numa_node") << "-1\n";  // one node
    CHECK_FALSE(store::numa_node_of_disk(folder, system));
    std::ofstream(bus / "numa_node") << "1\n";
    CHECK(store::numa_node_of_disk(folder, system) == 1);
    CHECK_FALSE(store::numa_node_of_disk(folder / "missing", system));
}

TEST_CASE("a range's pages come from the node that was asked for, or from all, and those around it do not") {
    const store::AlignedBuffer memory(kBytes);
    store::prefer_node({memory.data(), 4096}, 900);  // no such node
    store::prefer_node({memory.data() + 8192, 4096}, 0);
    const auto nodes = store::numa_nodes();
    store::interleave({memory.data() + 16384, 4096}, nodes);
    store::prefer_node({}, 0);
    if (!test::policy_at(memory.data())) {
        MESSAGE("SKIPPED: this system does not tell how it chooses NUMA nodes");
        return;
    }
    CHECK(mode_at(memory.data()) == MPOL_DEFAULT);
    CHECK(mode_at(memory.data() + 8192) == MPOL_PREFERRED);
    CHECK(mode_at(memory.data() + 12288) == MPOL_DEFAULT);
    CHECK(mode_at(memory.data() + 16384) == MPOL_INTERLEAVE);
    CHECK(mode_at(memory.data() + 20480) == MPOL_DEFAULT);
}

TEST_CASE("large memory asks for huge pages, shared memory too, and a private copy of it does not") {
    if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
        MESSAGE("SKIPPED: this kernel has no huge pages that programs ask for");
        return;
    }
    const store::AlignedBuffer memory(kBytes);
    CHECK(test::flags_at(memory.data()).find(" hg") != std::string::npos);
    const store::AlignedBuffer small(4096);
    CHECK(test::flags_at(small.data()).find(" hg") == std::string::npos);
    const fabric::MemoryFile file("shared", kBytes);
    const fabric::Mapping shared(file.descriptor(), fabric::MapMode::shared);
    CHECK(test::flags_at(shared.data()).find(" hg") != std::string::npos);
    const fabric::Mapping copy(file.descriptor(), fabric::MapMode::private_copy);
    CHECK(test::flags_at(copy.data()).find(" hg") == std::string::npos);
}
