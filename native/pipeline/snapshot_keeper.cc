#include "pipeline/snapshot_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "store/commit_files.h"

namespace luwu::pipeline {

namespace {

std::string given_up(std::uint64_t step) { return "the snapshot of step " + std::to_string(step) + " was given up"; }

}  // namespace

SnapshotKeeper::SnapshotKeeper(store::ChunkStore& store, SnapshotSettings settings)
    : store_(store), settings_(settings), thread_([this] { loop(); }) {
    const std::vector<std::uint64_t> there = store::snapshot_steps(store_.folders());
    if (!std::binary_search(there.begin(), there.end(), store_.committed().step)) committed();
}

SnapshotKeeper::~SnapshotKeeper() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    posted_.notify_all();
    thread_.join();
}

void SnapshotKeeper::post(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    posted_.notify_all();
}

void SnapshotKeeper::loop() {
    pthread_setname_np(pthread_self(), "luwu-snapshot");
    std::unique_lock lock(mutex_);
    while (true) {
        posted_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        lock.lock();
    }
}

// Not earlier: the spare that is there now may be what this step writes to.
void SnapshotKeeper::writing(std::uint64_t step) {
    if (!due(step)) return;
    post([this, version = 1 - store_.committed().version] {
        try {
            store_.reserve_spare(version);
        } catch (const Error&) {  // committed() meets it again, and says so
        }
    });
}

void SnapshotKeeper::committed() {
    const store::CommitRecord& record = store_.committed();
    if (!due(record.step)) return;
    try {
        store_.reserve_spare(record.version);  // as a rule it is there
        // The step waits for no lock, because any process may hold it for any time.
        constexpr std::chrono::milliseconds no_patience{0};
        post([this, pending = std::make_shared<store::PendingSnapshot>(store_, no_patience)] { finish(*pending); });
    } catch (const Error& error) {
        note_failure(given_up(record.step), error);
    }
}

void SnapshotKeeper::finish(store::PendingSnapshot& pending) {
    try {
        pending.finish(settings_.patience);
    } catch (const Error& error) {
        return note_failure(given_up(pending.step()), error);
    }
    {
        const std::lock_guard lock(mutex_);
        ++stats_.taken;
        stats_.step = pending.step();
        stats_.failure.clear();
    }
    try {
        remove_oldest();
    } catch (const Error& error) {
        note_failure("older snapshots stay", error);
    }
}

// By the order in which they were taken: after a restore a later one may be of a lower step.
void SnapshotKeeper::remove_oldest() {
    if (settings_.keep == 0) return;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;  // sequence, step
    for (const std::uint64_t step : store::snapshot_steps(store_.folders())) {
        if (due(step)) unless_gone(step, [&] { found.emplace_back(sequence_of(step), step); });
    }
    std::sort(found.begin(), found.end());
    for (std::size_t i = 0; i + settings_.keep < found.size(); ++i) {
        unless_gone(found[i].second, [&] { store::remove_snapshot(store_.folders(), found[i].second); });
    }
}

std::uint64_t SnapshotKeeper::sequence_of(std::uint64_t step) const {
    const store::CommitFiles files(store::snapshot_folders(store_.folders(), step), store::kSnapshotRecordName,
                                   store_.layout(), store_.uuid());
    return files.read().newest.sequence;
}

// Another process may remove a snapshot at any moment.
void SnapshotKeeper::unless_gone(std::uint64_t step, const std::function<void()>& call) const {
    try {
        call();
    } catch (const Error&) {
        const std::vector<std::uint64_t> there = store::snapshot_steps(store_.folders());
        if (std::binary_search(there.begin(), there.end(), step)) throw;
    }
}

void SnapshotKeeper::note_failure(const std::string& what, const Error& error) {
    const std::lock_guard lock(mutex_);
    stats_.failure = what + ": " + error.what();
}

SnapshotStats SnapshotKeeper::stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
}

}  // namespace luwu::pipeline
