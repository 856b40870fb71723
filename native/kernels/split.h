// Divides a kernel's range between threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace luwu::kernels {

/// Calls work(first, count) for consecutive parts of [0, elements) on `threads` threads, this one among them. Each
/// takes the next part when it is done with one, so a core that is busy with something else holds nobody up.
template <typename Work>
void split(std::size_t elements, std::size_t threads, const Work& work) {
    constexpr std::size_t kPart = std::size_t{1} << 16;  // a part takes longer than ten thousand hand-overs
    std::atomic<std::size_t> next = 0;
    const auto take_parts = [&] {
        for (std::size_t first = next.fetch_add(kPart); first < elements; first = next.fetch_add(kPart)) {
            work(first, std::min(kPart, elements - first));
        }
    };
    const std::size_t parts = (elements + kPart - 1) / kPart;
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(threads, parts); ++i) others.emplace_back(take_parts);
    take_parts();
}

}  // namespace luwu::kernels
