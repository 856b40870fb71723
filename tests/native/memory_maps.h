// The system's own word on a page of this process: the flags of its mapping, and the nodes that its memory comes from.
#pragma once

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace luwu::test {

// Returns the line VmFlags of /proc/self/smaps for the mapping that has this address.
inline std::string flags_at(const std::byte* memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::ifstream maps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        char dash = 0;
        if (std::istringstream(line) >> std::hex >> begin >> dash >> end && dash == '-') {
            inside = begin <= address && address < end;
        }
        if (inside && line.starts_with("VmFlags:")) return line;
    }
    return "";
}

struct MemoryPolicy {
    int mode = -1;                          // MPOL_PREFERRED, say
    std::array<unsigned long, 16> nodes{};  // as bits
};

// Returns the policy for this page; nothing where the system does not tell.
inline std::optional<MemoryPolicy> policy_at(const std::byte* memory) {
    MemoryPolicy policy;
    const long told = syscall(SYS_get_mempolicy, &policy.mode, policy.nodes.data(), 1024, memory, MPOL_F_ADDR);
    return told == 0 ? std::optional(policy) : std::nullopt;
}

}  // namespace luwu::test
