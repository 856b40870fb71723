#include "step_histories_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace luwu::test {

namespace {

std::string worker_name(std::uint32_t worker) { return "worker " + std::to_string(worker); }

void must(bool possible, const char* what) {
    if (!possible) throw std::logic_error(what);
}

std::string left_text(std::uint32_t worker, std::uint64_t step) {
    return worker_name(worker) + " left after step " + std::to_string(step) +
           " and others went on; give every worker the same number of batches";
}

}  // namespace

StepReference::StepReference(const StepSetup& setup)
    : rules_(setup.rules),
      streams_(setup.rules.one_stream ? 1 : setup.rules.workers),
      workers_(setup.rules.workers),
      now_(setup.rules.blocks.size()),
      done_(setup.standing) {}

step::Actions StepReference::happen(const StepEvent& event) {
    if (event.kind <= EventKind::annul) {
        if (!failed_) {
            hear_worker(event);
        } else if (event.kind == EventKind::vote) {
            workers_[event.worker].told.reset();  // of the step before: this one will have no end
        }
    } else if (event.kind >= EventKind::kept && event.kind <= EventKind::epoch_begun) {
        hear_executor(event);
    } else if (event.kind == EventKind::commit_soon) {
        point_is_due_ = point_is_due_ || !point_;
    } else if (event.kind == EventKind::make_durable) {
        flush_is_due_ = true;
        flush_if_due();
    } else if (event.kind == EventKind::join) {
        join(event.worker);
    } else if (event.kind == EventKind::leave) {
        leave(event.worker);
    } else if (event.kind == EventKind::lose) {
        lose(event.worker);
    } else if (event.kind == EventKind::fail) {
        fail(ErrorKind::server, "the server was closed");
    } else {
        broken_ = true;
        fail(ErrorKind::io, "the disk is at fault");
    }
    const bool deserted =
        std::all_of(workers_.begin(), workers_.end(), [](const NaiveWorker& worker) { return worker.absent; });
    if (now_.prepared && deserted) {
        fail(ErrorKind::worker_lost, "all workers were lost before this server knew how the others ended step " +
                                         std::to_string(done_.step + 1) +
                                         "; run again to resume from the last step that all have");
    }
    return std::exchange(actions_, {});
}

void StepReference::hear_worker(const StepEvent& event) {
    if (event.kind == EventKind::begin) begin(event.worker, step_settings(event.block));
    if (event.kind == EventKind::pull && now_.came[event.block].has(event.worker)) {
        fail(ErrorKind::order, worker_name(event.worker) + " pulled block '" + rules_.blocks[event.block].name +
                                   "' again after pushing its gradient in the same step");
    }
    if (event.kind == EventKind::push) push(event.worker, event.block);
    if (event.kind == EventKind::vote) vote(event);
    if (event.kind == EventKind::decide) decide(event.wanted, event.squares);
    if (event.kind == EventKind::annul) annul(*event.pushes);
}

void StepReference::hear_executor(const StepEvent& event) {
    if (event.kind == EventKind::kept && !failed_) {
        must(now_.keep_asked.has(event.block) && !now_.kept.has(event.block), "it is not being kept");
        now_.kept.add(event.block);
        now_.squares[event.block] = event.squares;
        end_if_nothing_is_under_way();
    }
    if (event.kind == EventKind::written) written(event.block);
    if (event.kind == EventKind::caught_up) caught_up(event.block);
    if (event.kind == EventKind::spoiled) now_.spoiled = true;
    if (event.kind == EventKind::point_written) {
        must(point_ && !point_->recording, "no commit point follows");
        if (broken_) return;
        point_->recording = true;
        actions_.emplace_back(step::WriteRecord{point_->record});
    }
    if (event.kind == EventKind::taken_back) taken_back();
    if (event.kind == EventKind::recorded) recorded();
    if (event.kind == EventKind::epoch_begun) {
        must(now_.epoch_awaited, "no epoch is awaited");
        now_.epoch_awaited = false;
        close_if_all_voted();
    }
}

// ---- workers

void StepReference::begin(std::uint32_t worker, const step::StepSettings& settings) {
    if (!gone_.empty()) return fail(ErrorKind::worker_lost, left_text(gone_.back(), done_.step));
    if (now_.prepared) {
        return fail(ErrorKind::order, worker_name(worker) + " began a step before the one before it was decided on");
    }
    if (workers_[worker].in_step) {
        bool pushed = rules_.one_stream || workers_[worker].voted;
        for (const Few& came : now_.came) pushed = pushed || came.has(worker);
        if (pushed || !(settings == now_.settings)) {
            return fail(ErrorKind::order, worker_name(worker) + " began a step twice");
        }
        actions_.emplace_back(step::BeginPass{worker});  // the answer had not reached it
        return;
    }
    const bool first = nobody_in_step(workers_);
    const bool limit = settings.gradient.max_norm.has_value();
    if (first && limits_ && *limits_ != limit) {
        return fail(ErrorKind::order, limit ? "a step began with max_grad_norm and the run's first one without; give "
                                              "every step one or none"
                                            : "a step began without max_grad_norm and the run's first one with; give "
                                              "every step one or none");
    }
    if (!first && !(settings == now_.settings)) {
        return fail(ErrorKind::order, worker_name(worker) + " began step " + std::to_string(done_.step + 1) +
                                          " with other hyper-parameters than the workers before it; give every worker "
                                          "the same optimizer settings and schedule");
    }
    if (first) {
        const bool chosen = limits_.has_value();
        limits_ = limit;
        if (!chosen && (keeps_gradients(rules_, *limits_) || rules_.tail.at_once > 0)) {
            actions_.emplace_back(step::PlanKept{});
        }
        now_.settings = settings;
        now_.speculates = limit && last_did_not_clip_ && !rules_.prepares && rules_.commit_points.is_each_step();
    }
    workers_[worker].in_step = true;
    if (!rules_.one_stream) actions_.emplace_back(step::BeginPass{worker});
    if (rules_.one_stream && first) actions_.emplace_back(step::BeginPass{0});
}

void StepReference::push(std::uint32_t stream, std::uint32_t block) {
    const bool may_push = rules_.one_stream ? !nobody_in_step(workers_) && !now_.closed
                                            : workers_[stream].in_step && !workers_[stream].counts;
    const std::string name = worker_name(stream) + " pushed block '" + rules_.blocks[block].name + "' ";
    if (!may_push) return fail(ErrorKind::order, name + "before it began a step");
    if (now_.came[block].has(stream)) return fail(ErrorKind::order, name + "twice in one step");
    now_.came[block].add(stream);
    if (now_.given_up || now_.lost) {
        actions_.emplace_back(step::GiveBack{block});
    } else {
        now_.useful[block].add(stream);
        if (now_.useful[block].size() == streams_) all_have_pushed(block);
    }
    if (rules_.one_stream) {
        ++now_.stream_pushes;
    } else {
        NaiveWorker& worker = workers_[stream];
        ++worker.pushed;
        if (worker.voted && worker.pushed >= worker.said) vote_counts(stream);
    }
    close_if_all_voted();
}

void StepReference::all_have_pushed(std::uint32_t block) {
    now_.order.push_back(block);
    if (now_.is_void()) {
        actions_.emplace_back(step::GiveBack{block});
        return;
    }
    const bool all_are_kept = keeps_gradients(rules_, *limits_);
    const bool later = rules_.tail.at_once > 0 && is_behind(rules_, now_, before_) &&
                       (all_are_kept || has_room(rules_, now_, before_, block));
    if ((now_.speculates || !all_are_kept) && !later) {
        if (!before_) return update(block);
        now_.update_waits.add(block);
        actions_.emplace_back(step::HurryOwed{block});
        return;
    }
    if (before_ && before_->not_in_memory.has(block)) {
        now_.keep_waits.add(block);
        actions_.emplace_back(step::HurryOwed{block});
        return;
    }
    now_.keep_asked.add(block);
    actions_.emplace_back(step::Keep{block});
}

void StepReference::update(std::uint32_t block) {
    now_.update_asked.add(block);
    if (now_.speculates) now_.keep_asked.add(block);
    actions_.emplace_back(step::Update{block, now_.speculates});
}

void StepReference::vote(const StepEvent& event) {
    NaiveWorker& worker = workers_[event.worker];
    const std::string name = worker_name(event.worker);
    if (worker.voted) {
        actions_.emplace_back(step::Refuse{Error(ErrorKind::order, name + " voted twice on one step")});
        return;
    }
    if (!worker.in_step || (event.pushes && *event.pushes < worker.said)) {
        return fail(ErrorKind::order, name + " ended a step that it had not begun");
    }
    const std::uint64_t says = event.pushes ? *event.pushes : worker.pushed;
    worker.in_step_pushes = says - worker.said;
    worker.said = says;
    worker.voted = true;
    worker.back = event.wanted;
    worker.told.reset();
    if (rules_.one_stream || worker.pushed >= says) vote_counts(event.worker);
    close_if_all_voted();
}

void StepReference::vote_counts(std::uint32_t worker) {
    if (workers_[worker].counts) return;
    workers_[worker].counts = true;
    if (!workers_[worker].back) return;
    const bool before = now_.given_up || now_.lost;
    now_.given_up = true;
    if (!before) nobody_needs_gradients();
}

void StepReference::nobody_needs_gradients() {
    for (step::Action& action : now_.given_back_unfinished(streams_)) actions_.push_back(std::move(action));
    if (!rules_.one_stream) return;
    now_.epoch_awaited = true;
    actions_.emplace_back(step::BeginEpoch{});
}

void StepReference::decide(bool commits, double squares) {
    if (!now_.prepared) return;
    now_.prepared = false;
    now_.decided = true;
    now_.sum = squares;
    if (!commits) now_.given_up = true;
    if (*limits_ && !(squares - squares == 0.0)) now_.given_up = true;  // not finite
    end_if_nothing_is_under_way();
}

void StepReference::annul(std::uint64_t ended) {
    if (!rules_.prepares || ended != done_.attempts + voided_) return;
    if (now_.decided || now_.taking_back || now_.recording) return;
    const bool before = now_.given_up || now_.lost;
    now_.lost = true;
    if (now_.prepared) {
        now_.prepared = false;
        now_.decided = true;
    }
    if (now_.closed) return end_if_nothing_is_under_way();
    if (!before) nobody_needs_gradients();
    close_if_all_voted();
}

void StepReference::join(std::uint32_t worker) {
    NaiveWorker& place = workers_[worker];
    if (place.counts) {
        place.pushed = place.said = 0;
        place.absent = false;
    } else {
        place = NaiveWorker{};
    }
    std::erase(gone_, worker);
}

void StepReference::leave(std::uint32_t worker) {
    NaiveWorker& place = workers_[worker];
    if (!place.counts) place.in_step = place.voted = false;
    std::erase(gone_, worker);
    gone_.push_back(worker);
    if (!nobody_in_step(workers_)) fail(ErrorKind::worker_lost, left_text(worker, done_.step));
}

void StepReference::lose(std::uint32_t worker) {
    NaiveWorker& place = workers_[worker];
    // With one stream nobody knows which gradients are missing, so an attempt that a worker is in needs all of its
    // sums.
    const bool half_done =
        rules_.one_stream ? !nobody_in_step(workers_) && !now_.closed : place.in_step && !place.counts;
    place.absent = true;
    if (!place.counts) place.in_step = place.voted = false;
    if (failed_) return;
    if (half_done) {
        const bool before = now_.given_up || now_.lost;
        now_.lost = true;
        if (!before) nobody_needs_gradients();
    }
    close_if_all_voted();
}

// ---- the executor

void StepReference::caught_up(std::uint32_t block) {
    if (!before_ || !before_->not_in_memory.has(block)) {
        if (failed_) return;
        must(now_.update_asked.has(block) && !now_.in_memory.has(block), "it is not being updated");
        ++done_.updates[block];
        now_.in_memory.add(block);
        return end_if_nothing_is_under_way();
    }
    before_->not_in_memory.remove(block);
    ++done_.updates[block];
    if (failed_ || !now_.keep_waits.has(block)) return;
    now_.keep_waits.remove(block);
    now_.keep_asked.add(block);
    actions_.emplace_back(step::Keep{block});
}

void StepReference::written(std::uint32_t block) {
    if (broken_) return;
    if (!owes(before_, block)) {
        if (failed_) return;
        must(now_.in_memory.has(block) && !now_.written.has(block), "it is not being written");
        now_.written.add(block);
        return end_if_nothing_is_under_way();
    }
    must(!before_->not_in_memory.has(block), "it is written before memory has it");
    before_->not_in_place.remove(block);
    record_if_all_is_in_place();
}

void StepReference::record_if_all_is_in_place() {
    if (!before_ || !before_->not_in_place.empty()) return;
    if (before_->may_follow) {
        point_ = NaivePoint{*before_->record};
        point_is_due_ = false;
        actions_.emplace_back(step::FollowPoint{});
        nothing_is_owed();
    } else if (before_->record) {
        actions_.emplace_back(step::WriteRecord{*before_->record});
    } else {
        nothing_is_owed();
    }
}

void StepReference::taken_back() {
    if (failed_) return;
    must(now_.taking_back, "nothing is taken back");
    for (const std::uint32_t block : now_.updated_blocks()) {
        must(now_.written.has(block), "it is still written");
        done_.updates[block] = done_.on_disk[block];
    }
    now_.taking_back = false;
    if (now_.redoing) {
        ++redone_;
        return answer_and_owe();
    }
    const step::Ending found = now_.ending_of_void();
    end(found.end, found.squares);
}

void StepReference::recorded() {
    if (point_ && point_->recording) {
        done_.on_disk = point_->record.counts;
        done_.durable_step = point_->record.step;
        point_.reset();
        flush_if_due();
        end_if_nothing_is_under_way();
        return;
    }
    if (!before_) {
        must(now_.recording, "no record is written");
        done_.on_disk = done_.updates;
        point_is_due_ = false;
        done_.durable_step = done_.step + 1;
        return end(step::kCommitted, now_.sum);
    }
    must(before_->record && before_->not_in_place.empty(), "no record is written");
    done_.on_disk = done_.updates;
    point_is_due_ = false;
    done_.durable_step = before_->record->step;
    nothing_is_owed();
}

void StepReference::nothing_is_owed() {
    before_.reset();
    flush_if_due();
    if (failed_) return;
    for (const std::uint32_t block : now_.order) {
        if (!now_.update_waits.has(block)) continue;
        now_.update_waits.remove(block);
        update(block);
    }
    end_if_nothing_is_under_way();
}

}  // namespace luwu::test
