#include "schedule/pass.h"

#include <algorithm>

namespace luwu::schedule {

void Pass::begin_step(std::uint32_t worker) {
    positions_[worker] = 0;
    if (worker != 0) return;
    recording_.clear();
    recording_now_ = true;
}

void Pass::pulled(std::uint32_t worker, std::uint32_t block) {
    if (worker == 0 && recording_now_) recording_.push_back(block);
    if (occurrences_[block].empty()) return;
    std::uint64_t& position = positions_[worker];
    position += distance(position, block) + 1;
    if (position > order_.size()) position -= order_.size();
}

void Pass::end_step() {
    recording_now_ = false;
    if (recording_.empty() || recording_ == order_) return;
    order_ = recording_;
    for (auto& places : occurrences_) places.clear();
    for (std::uint64_t place = 0; place < order_.size(); ++place) occurrences_[order_[place]].push_back(place);
    std::fill(positions_.begin(), positions_.end(), 0);
}

std::uint64_t Pass::distance(std::uint64_t position, std::uint32_t block) const {
    const auto& places = occurrences_[block];
    const auto next = std::lower_bound(places.begin(), places.end(), position);
    return next != places.end() ? *next - position : order_.size() - position + places.front();
}

std::optional<std::uint64_t> Pass::next_use(std::uint32_t block) const {
    if (occurrences_[block].empty()) return std::nullopt;
    std::uint64_t nearest = order_.size();
    for (const std::uint64_t position : positions_) nearest = std::min(nearest, distance(position, block));
    return nearest;
}

bool Pass::used_again_in_step(std::uint32_t block) const {
    const auto& places = occurrences_[block];
    if (places.empty()) return false;
    return std::any_of(positions_.begin(), positions_.end(),
                       [&](std::uint64_t position) { return position <= places.back(); });
}

std::optional<std::uint64_t> Pass::first_use(std::uint32_t block) const {
    if (occurrences_[block].empty()) return std::nullopt;
    return occurrences_[block].front();
}

std::optional<std::uint32_t> Pass::upcoming(std::uint32_t worker, std::uint64_t ahead) const {
    if (order_.empty()) return std::nullopt;
    return order_[(positions_[worker] + ahead) % order_.size()];
}

}  // namespace luwu::schedule
