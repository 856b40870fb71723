// The second half of the naive reference: how a step ends, what it says of itself, and how it is compared.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "step_histories_reference.h"

namespace luwu::test {

std::uint32_t NaiveStep::under_way(bool written_too) const {
    std::uint32_t blocks = 0;
    for (std::uint32_t block = 0; block < came.size(); ++block) {
        const bool keeping = keep_asked.has(block) && !kept.has(block);
        const bool updating = update_asked.has(block) && !(written_too ? written : in_memory).has(block);
        if (keeping || updating || keep_waits.has(block) || update_waits.has(block)) ++blocks;
    }
    return blocks;
}

std::vector<std::uint32_t> NaiveStep::updated_blocks() const {
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t block = 0; block < came.size(); ++block) {
        if (in_memory.has(block)) blocks.push_back(block);
    }
    return blocks;
}

std::vector<step::Action> NaiveStep::given_back_unfinished(std::uint32_t streams) const {
    std::vector<step::Action> actions;
    for (std::uint32_t block = 0; block < came.size(); ++block) {
        const std::uint32_t pushed = useful[block].size();
        if (pushed != 0 && pushed != streams) actions.emplace_back(step::GiveBack{block});
    }
    return actions;
}

std::string NaiveStep::what_workers_did_differently(const step::Rules& rules) const {
    const std::uint32_t streams = rules.one_stream ? 1 : rules.workers;
    for (std::uint32_t block = 0; block < rules.blocks.size(); ++block) {
        const std::uint32_t pushed = useful[block].size();
        if (pushed == 0 || pushed == streams) continue;
        return "block '" + rules.blocks[block].name + "' was pushed by " + std::to_string(pushed) + " of " +
               std::to_string(streams) + " workers; every worker must run the same blocks in a step";
    }
    for (std::uint32_t block = 0; block < rules.blocks.size(); ++block) {
        if (!rules.blocks[block].trainable || useful[block].size() != 0) continue;
        return "block '" + rules.blocks[block].name +
               "' was pushed by no worker; every worker must push all trainable blocks in a step, zeros where there is "
               "nothing";
    }
    return "";
}

bool is_behind(const step::Rules& rules, const NaiveStep& now, const std::optional<NaiveDebt>& debt) {
    if (debt) return true;
    std::uint32_t chunks = 0;
    for (std::uint32_t block = 0; block < rules.blocks.size(); ++block) {
        if (now.update_asked.has(block) && !now.in_memory.has(block)) chunks += rules.blocks[block].chunks;
    }
    return chunks >= rules.tail.at_once;
}

bool has_room(const step::Rules& rules, const NaiveStep& now, const std::optional<NaiveDebt>& debt,
              std::uint32_t block) {
    std::uint32_t chunks = rules.blocks[block].chunks;
    for (std::uint32_t other = 0; other < rules.blocks.size(); ++other) {
        const std::uint32_t size = rules.blocks[other].chunks;
        if (now.keep_waits.has(other)) chunks += size;
        if (now.keep_asked.has(other) && !now.update_asked.has(other)) chunks += size;
        if (debt && debt->not_in_memory.has(other)) chunks += size;
    }
    return chunks <= rules.tail.room;
}

double NaiveStep::factor() const { return *settings.gradient.max_norm / (std::sqrt(sum) + 1e-6); }

float NaiveStep::average(float mean) const {
    if (!settings.gradient.loss_scale) return mean;
    return static_cast<float>(static_cast<double>(mean) / settings.gradient.loss_scale->scale);
}

step::Stage NaiveStep::stage() const {
    if (!closed) return step::Stage::collecting;
    if (prepared) return step::Stage::prepared;
    if (recording) return step::Stage::recording;
    if (taking_back) return redoing ? step::Stage::redoing : step::Stage::restoring;
    return decided ? step::Stage::decided : step::Stage::closing;
}

step::Ending NaiveStep::ending_of_void() const {
    if (lost) return {step::kVoid, step::kNoSquares};
    if (given_up) return {step::kRolledBack, step::kNoSquares};
    const bool limits = settings.gradient.max_norm.has_value();
    return {step::kNotFinite, limits ? std::numeric_limits<double>::quiet_NaN() : step::kNoSquares};
}

void StepReference::fail(ErrorKind kind, const std::string& text) {
    if (failed_) return;
    failed_ = true;
    failure_ = text;
    actions_.emplace_back(step::Fail{Error(kind, text)});
}

bool nobody_in_step(const std::vector<NaiveWorker>& workers) {
    return std::none_of(workers.begin(), workers.end(), [](const NaiveWorker& worker) { return worker.in_step; });
}

void StepReference::close_if_all_voted() {
    const bool all = std::all_of(workers_.begin(), workers_.end(),
                                 [this](const auto& worker) { return worker.counts || (now_.lost && worker.absent); });
    if (failed_ || now_.closed || !all || now_.epoch_awaited) return;
    if (rules_.one_stream && !now_.given_up && !now_.lost) {
        const std::uint64_t pushes = workers_[0].in_step_pushes;
        for (std::uint32_t worker = 1; worker < workers_.size(); ++worker) {
            const std::uint64_t own = workers_[worker].in_step_pushes;
            if (own == pushes) continue;
            return fail(ErrorKind::order, "worker 0 pushed " + std::to_string(pushes) +
                                              " blocks in a step and worker " + std::to_string(worker) + " " +
                                              std::to_string(own) +
                                              "; every worker must run the same blocks in a step");
        }
        if (now_.stream_pushes < pushes) return;
    }
    now_.closed = true;
    if (now_.is_void()) {
        for (step::Action& action : now_.given_back_unfinished(streams_)) actions_.push_back(std::move(action));
    } else if (const std::string what = now_.what_workers_did_differently(rules_); !what.empty()) {
        return fail(ErrorKind::order, what);
    }
    actions_.emplace_back(step::FinishOwed{});
    end_if_nothing_is_under_way();
}

void StepReference::end_if_nothing_is_under_way() {
    if (failed_ || !now_.closed || now_.prepared || now_.taking_back || now_.recording) return;
    if (now_.under_way(rules_.tail.at_once == 0) != 0) return;
    const bool asks = rules_.prepares && !now_.decided && !now_.lost;
    if (now_.is_void() && !asks) {
        now_.taking_back = true;
        actions_.emplace_back(step::TakeBack{now_.updated_blocks()});
        return;
    }
    if (!now_.is_void()) {
        if (before_) return;
        if (point_ && is_commit_point(rules_.commit_points, done_.step + 1)) return;
        if (*limits_ && !now_.decided) {
            now_.sum = 0;
            for (std::uint32_t block = 0; block < rules_.blocks.size(); ++block) {
                if (now_.kept.has(block)) now_.sum += now_.squares[block];
            }
        }
    }
    if (asks) {
        now_.prepared = true;
        const step::Ending found = now_.is_void() ? now_.ending_of_void() : step::Ending{step::kPrepared, now_.sum};
        for (NaiveWorker& worker : workers_) {
            if (!worker.told) worker.told = found;
        }
        actions_.emplace_back(step::Answer{found});
        return;
    }
    if (!keeps_gradients(rules_, *limits_)) return commit();
    if (!now_.speculates) return answer_and_owe();
    if (!(now_.factor() < 1.0)) return commit();
    now_.taking_back = now_.redoing = true;
    std::vector<std::uint32_t> blocks;
    for (const std::uint32_t block : now_.order) {
        if (now_.in_memory.has(block)) blocks.push_back(block);
    }
    actions_.emplace_back(step::TakeBack{blocks});
}

void StepReference::answer_and_owe() {
    const bool clips = *limits_ && now_.factor() < 1.0;
    if (!*limits_) now_.sum = step::kNoSquares;
    last_did_not_clip_ = !clips;
    if (clips) ++clipped_;
    NaiveDebt owed;
    store::CommitRecord record = done_.next_record(now_.settings.gradient.loss_scale);
    std::vector<std::uint32_t> missing;
    for (const std::uint32_t block : now_.order) {
        const bool has_it = now_.in_memory.has(block) && !now_.redoing;
        if (has_it && now_.written.has(block)) continue;
        owed.not_in_place.add(block);
        if (has_it) continue;
        ++record.counts[block];
        owed.not_in_memory.add(block);
        missing.push_back(block);
    }
    const bool commits = point_is_due_ || is_commit_point(rules_.commit_points, record.step);
    if (commits) owed.record = record;
    owed.may_follow = commits && rules_.points_follow;
    if (commits || !owed.not_in_place.empty()) before_ = owed;
    const float scale = clips ? static_cast<float>(static_cast<double>(now_.average(rules_.mean)) * now_.factor())
                              : now_.average(rules_.mean);
    actions_.emplace_back(step::Settle{missing, scale, commits});
    end(step::kCommitted, now_.sum);
    record_if_all_is_in_place();
}

bool is_commit_point(const step::CommitPoints& points, std::uint64_t step) {
    for (const std::uint64_t every : {points.every, points.for_snapshots}) {
        if (every != 0 && step % every == 0) return true;
    }
    return false;
}

NaiveCounts::NaiveCounts(const store::CommitRecord& standing)
    : step(standing.step),
      durable_step(standing.step),
      attempts(standing.attempts),
      rolled_back(standing.rolled_back),
      attempts_of_step(standing.attempts),
      rolled_back_of_step(standing.rolled_back),
      loss_scale(standing.loss_scale),
      updates(standing.counts),
      on_disk(standing.counts) {}

store::CommitRecord NaiveCounts::last_record() const {
    store::CommitRecord record;
    record.step = step;
    record.attempts = attempts_of_step;
    record.rolled_back = rolled_back_of_step;
    record.counts = updates;
    record.loss_scale = loss_scale;
    return record;
}

store::CommitRecord NaiveCounts::next_record(const std::optional<store::LossScale>& scale) const {
    store::CommitRecord record;
    record.step = step + 1;
    record.attempts = attempts + 1;
    record.rolled_back = rolled_back;
    record.counts = updates;
    record.loss_scale = scale;
    return record;
}

void StepReference::commit() {
    if (rules_.tail.at_once > 0) return answer_and_owe();
    now_.recording = true;
    actions_.emplace_back(step::WriteRecord{done_.next_record(now_.settings.gradient.loss_scale)});
}

void StepReference::end(step::StepEnd how, double squares) {
    if (how == step::kVoid) {
        ++voided_;
    } else {
        ++done_.attempts;
    }
    if (how == step::kCommitted) {
        ++done_.step;
        done_.attempts_of_step = done_.attempts;
        done_.rolled_back_of_step = done_.rolled_back;
        done_.loss_scale = now_.settings.gradient.loss_scale;
    } else if (how != step::kVoid) {
        ++done_.rolled_back;
    }
    last_end_ = {how, squares};
    for (NaiveWorker& worker : workers_) {
        if (worker.counts && !worker.told) worker.told = last_end_;
        worker.in_step = worker.voted = worker.counts = false;
    }
    actions_.emplace_back(step::EndStep{last_end_, now_.order});
    const step::StepSettings settings = now_.settings;
    now_ = NaiveStep(rules_.blocks.size());
    now_.settings = settings;
}

void StepReference::flush_if_due() {
    if (!flush_is_due_ || before_ || point_ || broken_) return;
    flush_is_due_ = false;
    if (done_.step == done_.durable_step) return;
    NaiveDebt owed;
    owed.record = done_.last_record();
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t block = 0; block < rules_.blocks.size(); ++block) {
        if (done_.updates[block] == done_.on_disk[block]) continue;
        owed.not_in_place.add(block);
        blocks.push_back(block);
    }
    before_ = owed;
    actions_.emplace_back(step::Flush{blocks});
    record_if_all_is_in_place();
}

// ---- the comparison

std::string StepReference::difference(const step::State& state) const {
    if (state.stage != now_.stage()) return "stage";
    if (state.failed() != failed_ || state.broken.has_value() != broken_) return "failed";
    if (failed_ && failure_ != state.failure->what()) return "failure";
    if (state.is_void() != now_.is_void()) return "void";
    const step::Progress& progress = state.progress;
    if (progress.step() != done_.step || progress.attempts() != done_.attempts ||
        progress.rolled_back() != done_.rolled_back) {
        return "steps";
    }
    if (progress.durable_step() != done_.durable_step) return "the step on the disk";
    if (state.point_is_due != point_is_due_ || state.flush_is_due != flush_is_due_) return "what is due";
    if (progress.voided() != voided_) return "void attempts";
    if (progress.clipped() != clipped_ || progress.redone() != redone_) return "clipped or redone";
    if (progress.loss_scale() != done_.loss_scale) return "loss scale";
    if (state.owed.has_value() != before_.has_value()) return "owed";
    if (before_ && (state.owed->record != before_->record || state.owed->blocks != before_->not_in_place.size())) {
        return "the record that is owed";
    }
    if (state.point.has_value() != point_.has_value()) return "the commit point that follows";
    if (point_ && (state.point->record != point_->record || state.point->recording != point_->recording)) {
        return "the record that follows";
    }
    if (!same(state.last_end, last_end_)) return "the last ending";
    if (!failed_ && state.busy_blocks != now_.under_way(rules_.tail.at_once == 0)) return "the blocks under way";
    for (std::uint32_t block = 0; block < rules_.blocks.size(); ++block) {
        if (progress.count(block) != done_.updates[block]) return "updates";
        if (state.blocks[block].owes() != owes(before_, block)) return "a block that owes";
        if (state.blocks[block].stale() != (before_ && before_->not_in_memory.has(block))) return "a stale block";
    }
    bool works = false;
    for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) {
        const step::Member& member = state.members.at(worker);
        const NaiveWorker& own = workers_[worker];
        if ((member.standing != step::Standing::resting) != own.in_step) return "a worker in the step";
        if (member.waits() != own.voted) return "a worker that waits";
        if (member.absent != own.absent) return "an absent worker";
        if (state.may_join(worker) != (!own.counts && !now_.lost)) return "a place to join at";
        if (member.ending.has_value() != own.told.has_value()) return "an answer";
        if (own.told && !same(*member.ending, *own.told)) return "the ending that a worker was told";
        works = works || (own.in_step && (rules_.one_stream || !own.counts));
    }
    if (state.members.left() != (gone_.empty() ? std::nullopt : std::optional(gone_.back()))) return "who left";
    if (state.nobody_pulls() != (failed_ || now_.closed || !works)) return "somebody pulls";
    return "";
}

bool same(const step::Ending& left, const step::Ending& right) {
    return left.end == right.end &&
           (left.squares == right.squares || (left.squares != left.squares && right.squares != right.squares));
}

bool same(const step::Actions& left, const step::Actions& right) {
    if (left.size() != right.size()) return false;
    for (std::size_t at = 0; at < left.size(); ++at) {
        const auto* end = std::get_if<step::EndStep>(&left[at]);
        const auto* other = std::get_if<step::EndStep>(&right[at]);
        const auto* answer = std::get_if<step::Answer>(&left[at]);
        const auto* second = std::get_if<step::Answer>(&right[at]);
        if (end != nullptr && other != nullptr) {
            if (!same(end->ending, other->ending) || end->arrivals != other->arrivals) return false;
        } else if (answer != nullptr && second != nullptr) {
            if (!same(answer->ending, second->ending)) return false;
        } else if (!(left[at] == right[at])) {
            return false;
        }
    }
    return true;
}

}  // namespace luwu::test
