#include "pipeline/tracing.h"

#include <string>
#include <utility>

#include "store/error.h"

namespace luwu::pipeline {

void Tracing::start(std::uint32_t attempts, std::uint64_t most_records, std::uint64_t most_of_worker) {
    if (attempts == 0) throw Error(ErrorKind::invalid, "trace: expected at least 1 step, found 0");
    for (const std::uint64_t most : {most_records, most_of_worker}) {
        if (most > 0 && most <= kMostTraceRecords) continue;
        throw Error(ErrorKind::invalid, "trace: expected 1 to " + std::to_string(kMostTraceRecords) +
                                            " records, found " + std::to_string(most));
    }
    const std::lock_guard lock(mutex_);
    if (attempts_.asked()) {
        throw Error(ErrorKind::order, "trace: another one of this run is under way; wait until it is done");
    }
    finished_.reset();
    most_records_ = most_records;
    most_of_worker_ = most_of_worker;
    attempts_.ask(attempts);
}

void Tracing::take_no_more() {
    const std::lock_guard lock(mutex_);
    attempts_.take_no_more();
    finish_if_settled();
}

void Tracing::give_up() {
    const std::lock_guard lock(mutex_);
    attempts_.end();
    recorder.stop();
    finished_.reset();
}

std::optional<Traced> Tracing::take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(finished_, std::nullopt);
}

TraceRequest Tracing::request() const {
    const std::lock_guard lock(mutex_);
    if (!attempts_.within()) return {};
    return {most_of_worker_, attempts_.last()};
}

void Tracing::begin_attempt(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    switch (attempts_.begin_attempt(step)) {
        case trace::Attempts::Change::start:
            return recorder.start(most_records_);
        case trace::Attempts::Change::stop:
            return finish();
        case trace::Attempts::Change::none:
            return;
    }
}

void Tracing::stands(std::uint64_t step, std::uint64_t durable_step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
    durable_step_ = durable_step;
    finish_if_settled();
}

void Tracing::finish_if_settled() {
    if (!attempts_.complete() || step_ < attempts_.last_step() || durable_step_ < step_) return;
    attempts_.end();
    finish();
}

void Tracing::finish() { finished_ = Traced{recorder.stop(), attempts_.first_step(), attempts_.last_step()}; }

}  // namespace luwu::pipeline
