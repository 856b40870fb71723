#include "device/ring.h"

#include <algorithm>

#include "store/layout.h"

namespace luwu::device {

Ring::Ring(std::vector<std::uint64_t> block_bytes, std::uint32_t depth, const std::vector<std::uint32_t>& kept)
    : block_bytes_(std::move(block_bytes)), home_(block_bytes_.size()) {
    for (const std::uint64_t bytes : block_bytes_) sizes_[bytes].blocks += 1;
    for (const std::uint32_t block : kept) sizes_.at(block_bytes_.at(block)).most += 1;
    for (auto& [bytes, size] : sizes_) size.most = std::min(size.most + depth, size.blocks);
}

std::optional<std::uint32_t> Ring::choose(std::uint32_t block) {
    Size& size = sizes_.at(block_bytes_.at(block));
    if (home_[block] && !user_[*home_[block]]) {
        use(block, *home_[block]);
        return home_[block];
    }
    if (size.buffers.size() < size.most) {
        const std::uint32_t buffer = buffers();
        user_.emplace_back();
        size.buffers.push_back(buffer);
        use(block, buffer);
        return buffer;
    }
    for (std::uint32_t i = 0; i < size.buffers.size(); ++i) {
        const std::uint32_t at = (size.next + i) % static_cast<std::uint32_t>(size.buffers.size());
        if (user_[size.buffers[at]]) continue;
        size.next = at + 1;
        use(block, size.buffers[at]);
        return size.buffers[at];
    }
    return std::nullopt;
}

void Ring::use(std::uint32_t block, std::uint32_t buffer) {
    user_[buffer] = block;
    home_[block] = buffer;
}

void Ring::make_room(std::uint32_t block) { sizes_.at(block_bytes_.at(block)).most += 1; }

void Ring::vacate(std::uint32_t block) {
    if (const auto buffer = buffer_of(block)) user_[*buffer].reset();
}

std::optional<std::uint32_t> Ring::buffer_of(std::uint32_t block) const {
    const std::optional<std::uint32_t>& home = home_.at(block);
    return home && user_[*home] == block ? home : std::nullopt;
}

std::optional<std::uint64_t> PageRing::take(std::uint64_t bytes) {
    const std::uint64_t needed = store::round_up(bytes, store::kPage);
    std::uint64_t begin = taken_.empty() ? 0 : taken_.back().end;
    const std::uint64_t oldest = taken_.empty() ? bytes_ : taken_.front().begin;
    const bool wrapped = !taken_.empty() && taken_.back().begin < taken_.front().begin;
    if (wrapped) {
        if (begin + needed > oldest) return std::nullopt;
    } else if (begin + bytes > bytes_) {
        begin = 0;
        if (taken_.empty() || needed > oldest) return std::nullopt;
    }
    taken_.push_back({begin, begin + needed});
    return begin;
}

void PageRing::give_back_oldest() { taken_.pop_front(); }

}  // namespace luwu::device
