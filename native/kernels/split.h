// Divides a kernel's range between threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace luwu::kernels {

/// Calls work(first, count) on `threads` threads, this one among them, for equal parts of [0, elements).
template <typename Work>
void split(std::size_t elements, std::size_t threads, const Work& work) {
    constexpr std::size_t kStep = 4096;  // no two threads write one page of a plane, or one cache line of the copy
    const std::size_t part = ((elements + threads - 1) / threads + kStep - 1) / kStep * kStep;
    std::vector<std::jthread> others;
    for (std::size_t first = part; first < elements; first += part) {
        others.emplace_back([&work, first, count = std::min(part, elements - first)] { work(first, count); });
    }
    work(0, std::min(part, elements));
}

}  // namespace luwu::kernels
