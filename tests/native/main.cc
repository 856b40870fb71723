// Entry point of the native unit tests; each other file in this folder holds the tests of one part.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "namespaces.h"
#include "switch_choice.h"
#include "xdp_rig.h"

constexpr int kSkipped = 77;  // ctest's SKIP_RETURN_CODE

int main(int count, char** arguments) {
    using namespace luwu::test;
    if (!switches_of_tests().empty()) {
        const std::string& why = xdp_refused().empty() ? namespaces_missing() : xdp_refused();
        if (!why.empty()) {
            std::cout << "SKIPPED: no switch in the kernel here: " << why << "\n";
            return kSkipped;
        }
    }
    return doctest::Context(count, arguments).run();
}
