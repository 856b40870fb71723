#include "pipeline/gradients.h"

#include <algorithm>
#include <utility>

namespace luwu::pipeline {

Gradients::Gradients(Shared& shared) : shared_(shared), blocks_(shared.layout.block_count()) {
    for (Block& block : blocks_) block.gradients.assign(shared.settings.streams(), nullptr);
}

void Gradients::take(std::uint32_t stream, std::uint32_t block, const std::byte* gradient, Reply reply) {
    blocks_[block].gradients[stream] = gradient;
    blocks_[block].replies.push_back(std::move(reply));
    shared_.stats.bytes_pushed +=
        shared_.layout.shape().blocks[block].elements * kernels::size_of(shared_.gradient_dtype(block));
}

std::vector<const std::byte*> Gradients::at(const store::ChunkPlace& place) const {
    std::vector<const std::byte*> gradients;
    for (const std::byte* gradient : blocks_[place.block].gradients) {
        gradients.push_back(gradient + place.first_element * kernels::size_of(shared_.gradient_dtype(place.block)));
    }
    return gradients;
}

void Gradients::put_down(std::uint32_t block) {
    --blocks_[block].in_hand;
    if (shared_.failed()) fail(blocks_[block]);
}

void Gradients::give_back(std::uint32_t block) {
    for (const Reply& reply : std::exchange(blocks_[block].replies, {})) reply({});
}

void Gradients::fail() {
    for (Block& block : blocks_) fail(block);
}

// Gradients that an optimizer thread reads are the workers' again when it has put the last chunk down.
void Gradients::fail(Block& block) {
    if (block.in_hand > 0) return;
    for (const Reply& reply : std::exchange(block.replies, {})) reply({false, 0});
}

void Gradients::forget() {
    for (Block& block : blocks_) std::fill(block.gradients.begin(), block.gradients.end(), nullptr);
}

}  // namespace luwu::pipeline
