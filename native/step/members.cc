#include "step/members.h"

#include <algorithm>
#include <utility>

namespace luwu::step {

bool Members::anyone_in_step() const {
    return std::any_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.standing != Standing::resting; });
}

bool Members::anyone_working() const {
    return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
        return member.standing == Standing::begun || member.standing == Standing::voting;
    });
}

bool Members::all_voted(bool without_absent) const {
    if (!without_absent) return voted_ == count();
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.absent || member.standing == Standing::voted; });
}

bool Members::all_absent() const {
    return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.absent; });
}

std::optional<std::uint32_t> Members::left() const {
    if (left_.empty()) return std::nullopt;
    return left_.back();
}

std::optional<std::uint32_t> Members::differs_from_first() const {
    for (std::uint32_t worker = 1; worker < members_.size(); ++worker) {
        if (members_[worker].in_step != members_[0].in_step) return worker;
    }
    return std::nullopt;
}

void Members::vote(std::uint32_t worker, bool rolls_back, std::optional<std::uint64_t> pushes) {
    Member& member = members_[worker];
    member.standing = Standing::voting;
    member.rolls_back = rolls_back;
    member.needed = pushes.value_or(member.pushed);
    member.in_step = member.needed - std::exchange(member.at_last_vote, member.needed);
    member.ending.reset();
}

bool Members::vote_is_due(std::uint32_t worker) const {
    const Member& member = members_[worker];
    return member.standing == Standing::voting && member.pushed >= member.needed;
}

void Members::count_vote(std::uint32_t worker) {
    members_[worker].standing = Standing::voted;
    ++voted_;
}

void Members::answer(const Ending& ending) {
    for (Member& member : members_) {
        if (member.standing == Standing::voted && !member.ending) member.ending = ending;
    }
}

void Members::end_step() {
    for (Member& member : members_) member.standing = Standing::resting;
    voted_ = 0;
}

void Members::join(std::uint32_t worker) {
    Member& member = members_[worker];
    if (member.standing == Standing::voted) {
        member.pushed = member.needed = member.at_last_vote = 0;
        member.absent = false;
    } else {
        member = {};
    }
    std::erase(left_, worker);
}

void Members::leave(std::uint32_t worker) {
    Member& member = members_[worker];
    if (member.standing != Standing::voted) member.standing = Standing::resting;
    std::erase(left_, worker);
    left_.push_back(worker);
}

void Members::lose(std::uint32_t worker) {
    Member& member = members_[worker];
    if (member.standing != Standing::voted) member.standing = Standing::resting;
    member.absent = true;
}

}  // namespace luwu::step
