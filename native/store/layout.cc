#include "store/layout.h"

#include <utility>

#include "store/error.h"

namespace luwu::store {

Layout::Layout(StoreShape shape, std::uint32_t stripes) : shape_(std::move(shape)) {
    if (shape_.blocks.empty()) throw Error(ErrorKind::invalid, "a store needs at least one block; the model has none");
    if (stripes == 0) throw Error(ErrorKind::invalid, "a store needs at least one folder");
    if (shape_.chunk_elements == 0 || shape_.chunk_elements % kChunkStep != 0) {
        throw Error(ErrorKind::invalid, "chunk_elements is " + std::to_string(shape_.chunk_elements) +
                                            "; expected a positive multiple of " + std::to_string(kChunkStep));
    }
    plane_codes_[static_cast<std::size_t>(Master::whole)].push_back(kernels::StateCode::float32);
    plane_codes_[static_cast<std::size_t>(Master::remainder)].push_back(kernels::StateCode::remainder);
    for (auto& codes : plane_codes_) {
        for (const kernels::StateCode code : shape_.optimizer->codes) codes.push_back(code);
    }
    version_bytes_.assign(stripes, kPage);  // page 0 of each file identifies it
    frozen_bytes_.assign(stripes, kPage);
    std::uint32_t next_stripe = 0;
    for (std::uint32_t block = 0; block < shape_.blocks.size(); ++block) {
        const BlockShape& spec = shape_.blocks[block];
        if (spec.elements == 0) throw Error(ErrorKind::invalid, "block '" + spec.name + "' has no elements");
        scales_loss_ = scales_loss_ || spec.dtype == kernels::Dtype::float16;
        first_chunk_.push_back(static_cast<std::uint32_t>(chunks_.size()));
        const auto codes = plane_codes(block);
        const std::uint64_t count = (spec.elements + shape_.chunk_elements - 1) / shape_.chunk_elements;
        const std::uint64_t step = round_up((spec.elements + count - 1) / count, kChunkStep);
        for (std::uint64_t first = 0; first < spec.elements; first += step) {
            ChunkPlace place;
            place.block = block;
            place.chunk = static_cast<std::uint32_t>(first / step);
            place.stripe = next_stripe;
            place.trainable = spec.trainable;
            place.first_element = first;
            place.elements = std::min(step, spec.elements - first);
            place.parameter_bytes = round_up(place.elements * parameter_size(block), kPage);
            place.state_planes = spec.trainable ? static_cast<std::uint32_t>(codes.size()) : 0;
            for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
                place.plane_bytes[plane] = kernels::plane_bytes(codes[plane], place.elements);
            }
            std::uint64_t& end = (spec.trainable ? version_bytes_ : frozen_bytes_)[next_stripe];
            place.offset = end;
            end += place.record_bytes();
            next_stripe = (next_stripe + 1) % stripes;
            chunks_.push_back(place);
        }
    }
    first_chunk_.push_back(static_cast<std::uint32_t>(chunks_.size()));
}

std::span<const ChunkPlace> Layout::chunks_of(std::uint32_t block) const {
    return std::span(chunks_).subspan(first_chunk_[block], first_chunk_[block + 1] - first_chunk_[block]);
}

std::uint64_t Layout::window_bytes(std::uint32_t block) const {
    const ChunkPlace& last = chunks_of(block).back();
    return last.first_element * parameter_size(block) + last.parameter_bytes;
}

}  // namespace luwu::store
