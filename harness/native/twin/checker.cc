#include "twin/checker.h"

#include <algorithm>

namespace luwu::twin {

namespace {

constexpr std::size_t kMostFindings = 100;

bool overlap(const Access& access, std::uintptr_t begin, std::uintptr_t end) {
    return access.begin < end && begin < access.end;
}

}  // namespace

void Clock::tick(Actor actor) {
    if (times_.size() <= actor) times_.resize(actor + 1);
    ++times_[actor];
}

void Clock::join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (std::size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

void Checker::access(Actor actor, const Clock& clock, const Access& access) {
    for (const Past& past : past_) {
        if (!overlap(past.access, access.begin, access.end) || !(past.access.writes || access.writes)) continue;
        if (clock.of(past.actor) < past.time) {
            find("nothing orders \"" + access.what + "\" after \"" + past.access.what + "\"");
        }
    }
    // An access that meets a write also meets the accesses that the write covers and is ordered after.
    std::erase_if(past_, [&](const Past& past) {
        return access.writes && access.begin <= past.access.begin && past.access.end <= access.end &&
               clock.of(past.actor) >= past.time;
    });
    std::erase_if(past_, [&](const Past& past) {  // the same again
        return past.actor == actor && past.access.begin == access.begin && past.access.end == access.end &&
               past.access.writes == access.writes;
    });
    past_.push_back({access, actor, clock.of(actor)});
}

void Checker::forget(std::uintptr_t begin, std::uintptr_t end) {
    std::erase_if(past_, [&](const Past& past) { return overlap(past.access, begin, end); });
}

void Checker::forget_of(Actor actor, std::uintptr_t begin, std::uintptr_t end) {
    std::erase_if(past_, [&](const Past& past) { return past.actor == actor && overlap(past.access, begin, end); });
}

void Checker::find(std::string finding) {
    const bool known = std::find(findings_.begin(), findings_.end(), finding) != findings_.end();
    if (!known && findings_.size() < kMostFindings) findings_.push_back(std::move(finding));
}

}  // namespace luwu::twin
