// Switches of a test's tree that are in the kernel: the environment asks for it by LUWU_TEST_SWITCH.
#pragma once

#include <cstdlib>
#include <string>

namespace luwu::test {

// "xdp": all; "xdp_below" and "xdp_above": of two levels the lower and the upper; "": none.
[[nodiscard]] inline const std::string& switches_of_tests() {
    static const std::string which = [] {
        const char* const value = std::getenv("LUWU_TEST_SWITCH");
        return std::string(value == nullptr ? "" : value);
    }();
    return which;
}

[[nodiscard]] inline bool switch_in_kernel(bool above_others) {
    return switches_of_tests() == "xdp" || switches_of_tests() == (above_others ? "xdp_above" : "xdp_below");
}

}  // namespace luwu::test
