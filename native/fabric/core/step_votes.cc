#include "fabric/core/step_votes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace luwu::fabric {

namespace {
std::string name_of(std::size_t worker) { return "worker " + std::to_string(worker); }
}  // namespace

StepVotes::StepVotes(std::uint32_t workers, VoteEvents events) : events_(std::move(events)), workers_(workers) {}

StepVotes::Begun StepVotes::begin(std::uint32_t worker, const std::vector<pipeline::GroupSettings>& groups,
                                  const pipeline::GradientSettings& gradient,
                                  const std::function<std::uint32_t()>& epoch) {
    const std::lock_guard lock(mutex_);
    Worker& entry = workers_.at(worker);
    if (left_) {
        throw Error(ErrorKind::worker_lost, name_of(*left_) + " left after step " + std::to_string(steps_) +
                                                " and others went on; give every worker the same number of batches");
    }
    if (entry.begun) throw Error(ErrorKind::order, name_of(worker) + " began a step twice");
    if (begun_ > 0 && (groups != groups_ || gradient != gradient_)) {
        throw Error(ErrorKind::order, name_of(worker) +
                                          " began a step with other hyper-parameters than the workers before it; give "
                                          "every worker the same optimizer settings and schedule");
    }
    if (begun_ == 0) {
        groups_ = groups;
        gradient_ = gradient;
        events_.begun(groups, gradient);
    }
    entry.begun = true;
    ++begun_;
    return {roll_back_, epoch()};
}

void StepVotes::vote(std::uint32_t worker, bool roll_back, std::uint64_t pushes) {
    const std::lock_guard lock(mutex_);
    Worker& entry = workers_.at(worker);
    if (!entry.begun || entry.voted > steps_ || pushes < entry.pushes) {
        throw Error(ErrorKind::order, name_of(worker) + " ended a step that it had not begun");
    }
    entry.pushes_in_step = pushes - std::exchange(entry.pushes, pushes);
    entry.voted = steps_ + 1;
    entry.has_voted = true;
    if (roll_back && !std::exchange(roll_back_, true)) events_.given_up();
    if (++votes_ == workers_.size()) end_step();
}

void StepVotes::end_step() {
    const auto differs = std::find_if(workers_.begin(), workers_.end(), [this](const Worker& entry) {
        return entry.pushes_in_step != workers_[0].pushes_in_step;
    });
    const bool roll_back = std::exchange(roll_back_, false);
    const std::uint64_t pushes = workers_[0].pushes_in_step;
    begun_ = votes_ = 0;
    ++steps_;
    for (Worker& entry : workers_) entry.begun = false;
    if (!roll_back && differs != workers_.end()) {
        throw Error(ErrorKind::order, name_of(0) + " pushed " + std::to_string(pushes) + " blocks in a step and " +
                                          name_of(static_cast<std::size_t>(differs - workers_.begin())) + " " +
                                          std::to_string(differs->pushes_in_step) +
                                          "; every worker must run the same blocks in a step");
    }
    events_.ended(roll_back, pushes);
}

void StepVotes::answer(pipeline::Outcome outcome) {
    {
        const std::lock_guard lock(mutex_);
        ++answers_;
        outcome_ = outcome;
    }
    answered_.notify_all();
}

std::optional<pipeline::Outcome> StepVotes::wait(std::uint32_t worker, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    if (!workers_.at(worker).has_voted) {
        throw Error(ErrorKind::order, name_of(worker) + " waits for the end of a step that it has not voted on");
    }
    if (!answered_.wait_for(lock, at_most, [&] { return workers_.at(worker).voted <= answers_; })) return std::nullopt;
    return outcome_;
}

void StepVotes::joined(std::uint32_t worker) {
    const std::lock_guard lock(mutex_);
    workers_.at(worker) = {};
    workers_[worker].voted = steps_;
    if (left_ == worker) left_.reset();
}

bool StepVotes::leave(std::uint32_t worker) {
    const std::lock_guard lock(mutex_);
    left_ = worker;
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& entry) {
        return &entry != &workers_[worker] && (entry.begun || entry.voted > answers_);
    });
}

}  // namespace luwu::fabric
