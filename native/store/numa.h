// The NUMA nodes of this machine, each with its memory, processors and disks, and where the system is to take pages
// from. Pages of another node change speed alone, so nothing here fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace luwu::store {

struct NumaNode {
    int number = 0;               // the system's
    std::vector<int> processors;  // that this process may use, ascending; there is one at least

    bool operator==(const NumaNode&) const = default;
};

// The nodes that have processors and memory for this process, ascending. One node with all of this process's processors
// where the system does not tell, or some of them are on a node without memory for it.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::filesystem::path& system = "/sys",
                                               const std::filesystem::path& process = "/proc/self");
// The node of the disk that a folder is on; nothing where the system does not tell, as of a disk in the network.
[[nodiscard]] std::optional<int> numa_node_of_disk(const std::filesystem::path& folder,
                                                   const std::filesystem::path& system = "/sys");
// The node in a file of the system's, such as a device's numa_node; nothing where the system knows none.
[[nodiscard]] std::optional<int> read_numa_node(const std::filesystem::path& file);

// These take the whole pages that a range touches, and change only where pages that are not there yet will come from.
// Memory that processes share has it for all of them.
void prefer_node(std::span<std::byte> memory, int node);
void interleave(std::span<std::byte> memory, std::span<const NumaNode> nodes);  // page after page from the next node
// Huge pages where the system has them, for memory that fills one. In memory that processes share,
// /sys/kernel/mm/transparent_hugepage/shmem_enabled must say advise, and each process asks for its own mapping.
inline constexpr std::uint64_t kHugePage = 2U << 20;
void ask_for_huge_pages(std::span<std::byte> memory);

}  // namespace luwu::store
