// Step 6, in the writer's thread: writes records and kept gradients. It waits for a full disk here, without the lock,
// so that everything else of the server answers meanwhile.
#include <utility>

#include "pipeline/pipeline.h"

namespace luwu::pipeline {

void Pipeline::write(std::unique_ptr<IoTask> task) {
    task->request = write_request(*task);
    writer_->submit(std::move(task));
}

// Runs in the writer's thread, as commits do, because it may have to wait for room or for another process.
void Pipeline::prepare_to_write() {
    std::optional<Error> error;
    try {
        room_.retry([this] { store_.prepare_to_write(); });
    } catch (const Error& caught) {
        error = caught;
    }
    const std::lock_guard lock(mutex_);
    if (error) return break_locked(*error);
    may_write_ = true;
    settings_.on_writing();
    for (auto& task : std::exchange(first_writes_, {})) {
        if (!given_up(blocks_[layout_.chunks()[task->chunk].block])) write(std::move(task));
    }
}

// The memory stays as it is until the task is done.
store::IoRequest Pipeline::write_request(const IoTask& task) const {
    if (task.kept) return kept_->write(task.chunk);
    const store::ChunkPlace& place = layout_.chunks()[task.chunk];
    return store_.records().write_record(place, task.count, parameters_of(place), states_.memory(task.chunk));
}

// Makes a failed write that found no room again, all of it, until there is room; at once the first time, because
// another write that failed with it may have waited for room already. Returns the error if the write fails in the end.
std::optional<Error> Pipeline::write_again(IoTask& task) {
    const store::ChunkPlace& place = layout_.chunks()[task.chunk];
    const auto failed = [&] {
        return task.kept ? kept_->failed(task.request, task.chunk)
                         : store_.records().failed(task.request, place, task.count);
    };
    if (settings_.disk_full_wait.count() == 0 || failed().kind() != ErrorKind::no_space) return failed();
    try {
        room_.retry([&] {
            task.request = write_request(task);
            store::transfer_now(task.request);
            if (task.request.error != 0) throw failed();
        });
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

void Pipeline::record_written(IoTask& task) {
    const auto error = task.request.error != 0 ? write_again(task) : std::nullopt;
    const std::lock_guard lock(mutex_);
    stats_.bytes_written += task.bytes;
    if (error) return break_locked(*error);
    if (task.kept) return kept_written(task);
    if (!given_up(blocks_[layout_.chunks()[task.chunk].block])) chunk_written(task.chunk);
}

}  // namespace luwu::pipeline
