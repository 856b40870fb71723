#include "fabric/shm/places.h"

namespace luwu::fabric {

Places::Places(std::uint32_t workers, std::uint32_t blocks) : places_(workers) {
    for (Place& place : places_) place.held.assign(blocks, 0);
}

void Places::asked(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    ++places_[rank].under_way;
}

void Places::answered(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    if (--places_[rank].under_way == 0) changed_.notify_all();
}

bool Places::pulled(std::uint32_t rank, std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    Place& place = places_[rank];
    if (!place.lost) ++place.held[block];
    return !place.lost;
}

void Places::released(std::uint32_t rank, std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    std::uint32_t& held = places_[rank].held[block];
    if (held > 0) --held;
}

std::vector<std::uint32_t> Places::lose(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    Place& place = places_[rank];
    place.lost = true;
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t block = 0; block < place.held.size(); ++block) {
        blocks.insert(blocks.end(), place.held[block], block);
        place.held[block] = 0;
    }
    return blocks;
}

bool Places::wait_until_empty(std::uint32_t rank, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [&] { return places_[rank].under_way == 0; });
}

void Places::take(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    places_[rank].lost = false;
}

}  // namespace luwu::fabric
