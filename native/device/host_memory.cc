#include "device/host_memory.h"

#include <algorithm>
#include <cctype>

#include "store/numa.h"

namespace luwu::device {

std::optional<int> numa_node_of(std::string bus_id, const std::filesystem::path& devices) {
    std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    return store::read_numa_node(devices / bus_id / "numa_node");
}

void place_near(std::span<std::byte> memory, std::optional<int> node) {
    store::ask_for_huge_pages(memory);
    if (node) store::prefer_node(memory, *node);
}

}  // namespace luwu::device
