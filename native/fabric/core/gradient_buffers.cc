#include "fabric/core/gradient_buffers.h"

#include <algorithm>

#include "fabric/core/arena.h"

namespace luwu::fabric {

namespace {
constexpr int kPlacesInTurn = 2;
}

GradientBuffers::GradientBuffers(const store::StoreShape& shape, const std::vector<bool>& held,
                                 const std::vector<std::uint64_t>& gradient_bytes, std::uint64_t file_bytes,
                                 std::uint32_t rank)
    : file_("luwu-arena", file_bytes),
      arena_(file_.descriptor(), MapMode::shared),
      data_(arena_.data() + arena_start(rank)),
      held_(held) {
    std::uint64_t offset = 0;
    std::uint64_t largest = 0;
    for (std::uint32_t block = 0; block < shape.blocks.size(); ++block) {
        if (!shape.blocks[block].trainable) continue;
        const std::uint64_t bytes = store::round_up(gradient_bytes[block], store::kPage);
        if (!held[block]) {
            largest = std::max(largest, bytes);
            continue;
        }
        places_.push_back({offset, block, false});
        offset += bytes;
    }
    for (int i = 0; i < kPlacesInTurn && largest > 0; ++i) {
        places_.push_back({offset, std::nullopt, false});
        offset += largest;
    }
}

std::optional<std::uint32_t> GradientBuffers::take(std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t place = 0; place < places_.size(); ++place) {
        Buffer& candidate = places_[place];
        if (candidate.taken || (held_[block] ? candidate.block != block : candidate.block.has_value())) continue;
        candidate.taken = true;
        return place;
    }
    return std::nullopt;
}

void GradientBuffers::free(std::uint32_t place) {
    const std::lock_guard lock(mutex_);
    places_[place].taken = false;
}

bool GradientBuffers::all_free() const {
    const std::lock_guard lock(mutex_);
    return std::none_of(places_.begin(), places_.end(), [](const Buffer& place) { return place.taken; });
}

}  // namespace luwu::fabric
