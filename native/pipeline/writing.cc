#include "pipeline/writing.h"

#include <utility>

#include "pipeline/executor.h"
#include "pipeline/keeping.h"
#include "pipeline/point_writes.h"
#include "pipeline/replica.h"
#include "pipeline/updates.h"

namespace luwu::pipeline {

Writing::Writing(Shared& shared)
    : shared_(shared),
      writer_(std::make_unique<IoStage>("luwu-6-write", shared.settings.make_engine(shared.settings.io_depth),
                                        shared.recorder, [this](IoTask& task) { done(task); })) {
    if (shared.settings.replica) shared.settings.replica->start();
}

void Writing::stop() {
    if (shared_.settings.replica) shared_.settings.replica->give_back();
    writer_.reset();
}

void Writing::write_record(std::uint32_t chunk, std::uint64_t count, std::uint64_t step) {
    write_once_prepared(record_task(chunk, count, step));
}

void Writing::write_following(std::uint32_t chunk, std::uint64_t count, std::byte* copy) {
    auto task = record_task(chunk, count, shared_.step().step_to_write());
    task->follows = true;
    task->copy = copy;
    write_once_prepared(std::move(task));
}

std::unique_ptr<IoTask> Writing::record_task(std::uint32_t chunk, std::uint64_t count, std::uint64_t step) const {
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->count = count;
    task->bytes = shared_.place(chunk).record_bytes();
    task->step = step;
    return task;
}

void Writing::write_once_prepared(std::unique_ptr<IoTask> task) {
    if (prepared_) return write(std::move(task));
    first_.push_back(std::move(task));
    if (first_.size() == 1) post([this] { prepare(); });
}

void Writing::write_kept(std::uint32_t chunk) {
    auto task = std::make_unique<IoTask>();
    task->chunk = chunk;
    task->bytes = shared_.parts.keeping->gradients().bytes(chunk);
    task->step = shared_.step().progress.step() + 1;
    task->kept = true;
    write(std::move(task));
}

void Writing::write(std::unique_ptr<IoTask> task) {
    task->request = request_of(*task);
    if (task->kept || !shared_.settings.replica) return writer_->submit(std::move(task));
    shared_.settings.replica->send(std::move(task),
                                   [this](std::unique_ptr<IoTask> sent) { writer_->submit(std::move(sent)); });
}

// Runs in the writer's thread, as commits do, because it may have to wait for room or for another process.
void Writing::prepare() {
    std::optional<Error> error;
    try {
        shared_.room.retry([this] { shared_.store.prepare_to_write(); });
    } catch (const Error& caught) {
        error = caught;
    }
    const std::lock_guard lock(shared_.mutex);
    if (error) return shared_.parts.executor->break_down(*error);
    prepared_ = true;
    shared_.settings.on_writing(shared_.step().step_to_write());
    for (auto& task : std::exchange(first_, {})) {
        if (!given_up(*task)) write(std::move(task));
    }
}

bool Writing::given_up(const IoTask& task) const {
    const step::State& step = shared_.step();
    return task.follows ? step.broken.has_value() : step.given_up(shared_.place(task.chunk).block);
}

// The memory stays as it is until the task is done.
store::IoRequest Writing::request_of(const IoTask& task) const {
    if (task.kept) return shared_.parts.keeping->gradients().write(task.chunk);
    const store::ChunkPlace& place = shared_.place(task.chunk);
    std::byte* parameters = task.copy != nullptr ? task.copy : shared_.parameters_of(place);
    std::byte* states = task.copy != nullptr ? task.copy + place.parameter_bytes : shared_.states.memory(task.chunk);
    return shared_.store.records().write_record(place, task.count, parameters, states);
}

// Repeats a whole write that found no room until there is room. The first try comes at once, because another write may
// have waited for room already. Returns the error if the write fails in the end.
std::optional<Error> Writing::write_again(IoTask& task) {
    const store::ChunkPlace& place = shared_.place(task.chunk);
    const auto failed = [&] {
        return task.kept ? shared_.parts.keeping->gradients().failed(task.request, task.chunk)
                         : shared_.store.records().failed(task.request, place, task.count);
    };
    if (shared_.settings.disk_full_wait.count() == 0 || failed().kind() != ErrorKind::no_space) return failed();
    try {
        shared_.room.retry([&] {
            task.request = request_of(task);
            store::transfer_now(task.request);
            if (task.request.error != 0) throw failed();
        });
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

void Writing::done(IoTask& task) {
    const auto error = task.request.error != 0 ? write_again(task) : std::nullopt;
    shared_.note(task.kept ? trace::Kind::write_kept : trace::Kind::write, task);
    const std::lock_guard lock(shared_.mutex);
    shared_.stats.bytes_written += task.bytes;
    if (error) return shared_.parts.executor->break_down(*error);
    if (task.kept) return shared_.parts.keeping->written(task.chunk);
    if (given_up(task)) return;
    task.follows ? shared_.parts.points->done(task) : shared_.parts.updates->chunk_written(task.chunk);
}

void Writing::commit(store::CommitRecord record) {
    post([this, record = std::move(record)]() mutable { commit_now(std::move(record)); });
}

void Writing::commit_now(store::CommitRecord record) {
    const trace::Record span{.begin_ns = shared_.recorder.begin(),
                             .step = static_cast<std::uint32_t>(record.step),
                             .kind = trace::Kind::commit};
    try {
        shared_.room.retry([&] { shared_.store.commit(record); });
        if (shared_.settings.replica) shared_.settings.replica->commit(shared_.store);
    } catch (const Error& error) {
        const std::lock_guard lock(shared_.mutex);
        return shared_.parts.executor->break_down(error);
    }
    shared_.recorder.end(span);
    {
        const std::lock_guard lock(shared_.mutex);
        prepared_ = false;
        shared_.committed_at = std::chrono::steady_clock::now();
        shared_.parts.executor->tell(shared_.machine.recorded());
        const step::Progress& progress = shared_.step().progress;
        shared_.settings.tracing->stands(progress.step(), progress.durable_step());
        shared_.changed.notify_all();
    }
    shared_.settings.on_commit();
}

}  // namespace luwu::pipeline
