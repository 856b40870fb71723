#include "fabric/shm/places.h"

namespace luwu::fabric {

WorkerPlaces::WorkerPlaces(std::uint32_t workers, std::uint32_t blocks) : places_(workers) {
    for (Place& place : places_) place.held.assign(blocks, 0);
}

void WorkerPlaces::asked(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    ++places_[rank].under_way;
}

void WorkerPlaces::answered(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    if (--places_[rank].under_way == 0) changed_.notify_all();
}

bool WorkerPlaces::pulled(std::uint32_t rank, std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    Place& place = places_[rank];
    if (!place.lost) ++place.held[block];
    return !place.lost;
}

void WorkerPlaces::released(std::uint32_t rank, std::uint32_t block) {
    const std::lock_guard lock(mutex_);
    std::uint32_t& held = places_[rank].held[block];
    if (held > 0) --held;
}

std::vector<std::uint32_t> WorkerPlaces::lose(std::uint32_t rank) {
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

bool WorkerPlaces::wait_until_empty(std::uint32_t rank, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [&] { return places_[rank].under_way == 0; });
}

void WorkerPlaces::take(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    places_[rank].lost = false;
}

}  // namespace luwu::fabric
