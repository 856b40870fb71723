// Places the host memory that a device copies from and to: on the device's NUMA node and in huge pages, as far as the
// system has them. Neither changes what is copied, so nothing here fails.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace luwu::device {

// The NUMA node of a device on the PCI bus, such as 0000:3B:00.0; nothing where the system does not tell.
[[nodiscard]] std::optional<int> numa_node_of(std::string bus_id,
                                              const std::filesystem::path& devices = "/sys/bus/pci/devices");

// Asks the system for pages of this node, and for huge ones, where the pages of this range are not there yet.
void place_near(std::span<std::byte> memory, std::optional<int> node);

}  // namespace luwu::device
