#include "store/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

namespace luwu::store {

namespace {

constexpr int kMostNodes = 1024;
constexpr int kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

using NodeMask = std::array<unsigned long, kMostNodes / kBitsOfWord>;

void add(NodeMask& mask, int node) {
    if (node < 0 || node >= kMostNodes) return;
    mask.at(static_cast<std::size_t>(node) / kBitsOfWord) |= 1UL << (static_cast<unsigned>(node) % kBitsOfWord);
}

// The whole pages that a range touches.
std::span<std::byte> pages_of(std::span<std::byte> memory) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::uintptr_t begin = address / page * page;
    const std::uintptr_t end = (address + memory.size() + page - 1) / page * page;
    return {reinterpret_cast<std::byte*>(begin), end - begin};
}

void set_policy(std::span<std::byte> memory, int policy, const NodeMask& nodes) {
    if (memory.empty()) return;
    const auto pages = pages_of(memory);
    syscall(SYS_mbind, pages.data(), pages.size(), policy, nodes.data(), kMostNodes, 0);
}

std::vector<int> usable_processors() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
    std::vector<int> processors;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
        if (CPU_ISSET(static_cast<std::size_t>(processor), &allowed)) processors.push_back(processor);
    }
    return processors;
}

// The number of the node whose folder has this name; nothing for another folder or file.
std::optional<int> number_of_node(std::string_view name) {
    if (!name.starts_with("node")) return std::nullopt;
    int number = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + 4, end, number);
    if (error != std::errc() || rest != end) return std::nullopt;
    return number;
}

// True if a list of the system's, such as 0-3,8, has the number.
bool has(const std::string& list, int number) {
    std::istringstream ranges(list);
    for (std::string range; std::getline(ranges, range, ',');) {
        int first = 0;
        int last = 0;
        const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
        if (read >= 1 && first <= number && number <= (read == 1 ? first : last)) return true;
    }
    return false;
}

std::vector<int> processors_of(const std::filesystem::path& node, const std::vector<int>& usable) {
    std::string list;
    std::getline(std::ifstream(node / "cpulist"), list);
    std::vector<int> processors;
    std::copy_if(usable.begin(), usable.end(), std::back_inserter(processors),
                 [&](int processor) { return has(list, processor); });
    return processors;
}

// False if this process may take no memory of the node, as in a container that is bound to others.
bool gives_memory(const std::filesystem::path& process, int node) {
    constexpr std::string_view kName = "Mems_allowed_list:";
    std::ifstream status(process / "status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(kName)) return has(line.substr(kName.size()), node);
    }
    return true;
}

bool has_memory(const std::filesystem::path& node) {
    std::ifstream file(node / "meminfo");
    for (std::string word; file >> word;) {
        std::uint64_t kibibytes = 0;
        if (word == "MemTotal:") return file >> kibibytes && kibibytes > 0;
    }
    return false;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::filesystem::path& system, const std::filesystem::path& process) {
    const std::vector<int> usable = usable_processors();
    std::vector<NumaNode> nodes;
    std::size_t found = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(system / "devices/system/node", none)) {
        const auto number = number_of_node(entry.path().filename().string());
        if (!number || !has_memory(entry.path()) || !gives_memory(process, *number)) continue;
        nodes.push_back({*number, processors_of(entry.path(), usable)});
        found += nodes.back().processors.size();
    }
    if (usable.empty() || found != usable.size()) return {{0, usable}};
    std::erase_if(nodes, [](const NumaNode& node) { return node.processors.empty(); });
    std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
    return nodes;
}

std::optional<int> numa_node_of_disk(const std::filesystem::path& folder, const std::filesystem::path& system) {
    struct stat info{};
    if (stat(folder.c_str(), &info) != 0) return std::nullopt;
    const std::string number = std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
    std::error_code none;
    std::filesystem::path device = std::filesystem::canonical(system / "dev/block" / number, none);
    // A partition is below its disk, and that below the device on the bus, which has the node.
    for (; !none && device.has_relative_path(); device = device.parent_path()) {
        if (const auto node = read_numa_node(device / "numa_node")) return node;
    }
    return std::nullopt;
}

std::optional<int> read_numa_node(const std::filesystem::path& file) {
    std::ifstream stream(file);
    int node = -1;  // what the system says where it knows none, too
    if (!(stream >> node) || node < 0 || node >= kMostNodes) return std::nullopt;
    return node;
}

void prefer_node(std::span<std::byte> memory, int node) {
    NodeMask mask{};
    add(mask, node);
    set_policy(memory, MPOL_PREFERRED, mask);
}

void interleave(std::span<std::byte> memory, std::span<const NumaNode> nodes) {
    NodeMask mask{};
    for (const NumaNode& node : nodes) add(mask, node.number);
    set_policy(memory, MPOL_INTERLEAVE, mask);
}

void ask_for_huge_pages(std::span<std::byte> memory) {
    if (memory.size() < kHugePage) return;
    const auto pages = pages_of(memory);
    madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
}

}  // namespace luwu::store
