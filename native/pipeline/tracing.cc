#include "pipeline/tracing.h"

#include <string>
#include <utility>

#include "store/error.h"

namespace luwu::pipeline {

void Tracing::start(std::uint32_t attempts, std::uint64_t most_records) {
    if (attempts == 0 || most_records == 0 || most_records > kMostTraceRecords) {
        throw Error(ErrorKind::invalid, "trace: expected at least 1 step, and 1 to " +
                                            std::to_string(kMostTraceRecords) + " records, found " +
                                            std::to_string(attempts) + " and " + std::to_string(most_records));
    }
    const std::lock_guard lock(mutex_);
    if (attempts_.asked()) {
        throw Error(ErrorKind::order, "trace: another one of this run is under way; wait until it is done");
    }
    finished_.reset();
    most_records_ = most_records;
    attempts_.ask(attempts);
}

std::optional<Traced> Tracing::take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(finished_, std::nullopt);
}

TraceRequest Tracing::request() const {
    const std::lock_guard lock(mutex_);
    if (!attempts_.within()) return {};
    return {most_records_, attempts_.last()};
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
    if (!attempts_.complete() || step < attempts_.last_step() || durable_step < step) return;
    attempts_.end();
    finish();
}

void Tracing::finish() { finished_ = Traced{recorder.stop(), attempts_.first_step(), attempts_.last_step()}; }

}  // namespace luwu::pipeline
