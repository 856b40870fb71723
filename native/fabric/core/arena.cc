#include "fabric/core/arena.h"

#include <algorithm>

namespace luwu::fabric {

std::vector<std::uint64_t> bytes_of_blocks(const store::StoreShape& shape) {
    std::vector<std::uint64_t> bytes;
    for (const store::BlockShape& block : shape.blocks) {
        bytes.push_back(block.bytes());
    }
    return bytes;
}

std::uint64_t arena_file_bytes(const store::StoreShape& shape, const schedule::ResidencyPlan& plan) {
    std::uint64_t largest = 0;
    for (const store::BlockShape& block : shape.blocks) largest = std::max(largest, block.elements);
    return std::max(plan.arena_bytes, store::round_up(largest * sizeof(float), store::kPage)) + kArenaSlackBytes;
}

}  // namespace luwu::fabric
