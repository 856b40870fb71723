#include "store/size_text.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace luwu::store {

std::string size_text(std::uint64_t bytes) {
    constexpr std::array<const char*, 3> kUnits{"KiB", "MiB", "GiB"};
    constexpr double kStep = 1024.0;
    std::size_t unit = 0;
    double count = static_cast<double>(bytes) / kStep;
    for (; count >= kStep && unit + 1 < kUnits.size(); ++unit) count /= kStep;
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.1f %s", std::ceil(10.0 * count) / 10.0, kUnits[unit]);
    return text.data();
}

}  // namespace luwu::store
