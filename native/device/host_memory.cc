#include "device/host_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <fstream>

namespace luwu::device {

namespace {

constexpr int kMostNodes = 1024;
constexpr int kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::optional<int> numa_node_of(std::string bus_id, const std::filesystem::path& devices) {
    std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    std::ifstream file(devices / bus_id / "numa_node");
    int node = -1;  // what the system says where it knows none, too
    if (!(file >> node) || node < 0 || node >= kMostNodes) return std::nullopt;
    return node;
}

void place_near(std::span<std::byte> memory, std::optional<int> node) {
    if (memory.empty()) return;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory.data()) / page * page;
    const std::uintptr_t end =
        (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() + page - 1) / page * page;
    void* const pages = reinterpret_cast<void*>(begin);
    madvise(pages, end - begin, MADV_HUGEPAGE);
    if (!node) return;
    std::array<unsigned long, kMostNodes / kBitsOfWord> nodes{};
    const auto word = static_cast<std::size_t>(*node) / kBitsOfWord;
    nodes.at(word) = 1UL << (static_cast<unsigned>(*node) % kBitsOfWord);
    syscall(SYS_mbind, pages, end - begin, MPOL_PREFERRED, nodes.data(), kMostNodes, 0);
}

}  // namespace luwu::device
