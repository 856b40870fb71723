#include "pipeline/last_word.h"

#include "pipeline/executor.h"

namespace luwu::pipeline {

void LastWord::decide(std::uint64_t ended, bool commits, double squares) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    if (shared.step().progress.ended() == ended) executor_->tell(shared.machine.decide(commits, squares));
}

void LastWord::annul(std::uint64_t ended) {
    Shared& shared = executor_->shared;
    const std::lock_guard lock(shared.mutex);
    executor_->tell(shared.machine.annul(ended));
}

std::optional<Outcome> LastWord::wait(std::chrono::milliseconds at_most) {
    const Shared& shared = executor_->shared;
    std::unique_lock lock(executor_->shared.mutex);
    const step::Member& member = shared.step().members.at(worker_);
    const auto over = [&] { return !member.waits(); };
    executor_->shared.changed.wait_for(lock, at_most, [&] { return over() || shared.failed(); });
    if (shared.failed()) throw Error(*shared.step().failure);
    if (!over()) return std::nullopt;
    return outcome_of(shared.step().last_end);
}

}  // namespace luwu::pipeline
