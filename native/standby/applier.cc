#include "standby/applier.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/crc32c.h"
#include "store/io_engine.h"
#include "store/records.h"

namespace luwu::standby {

namespace {

constexpr std::size_t kBuffers = 4;  // one is written while others arrive

std::uint64_t longest_record(const store::Layout& layout) {
    std::uint64_t longest = 0;
    for (const store::ChunkPlace& place : layout.chunks()) longest = std::max(longest, place.record_bytes());
    return longest;
}

}  // namespace

Applier::Applier(store::ChunkStore& store, std::function<void()> done)
    : store_(store), done_(std::move(done)), written_(store.layout().chunks().size()) {
    for (std::size_t i = 0; i < kBuffers; ++i) free_.emplace_back(longest_record(store.layout()));
    thread_ = std::thread([this] { run(); });
}

Applier::~Applier() {
    {
        const std::lock_guard lock(mutex_);
        stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::optional<store::AlignedBuffer> Applier::take_buffer() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::nullopt;
    store::AlignedBuffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
}

void Applier::give_back(store::AlignedBuffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
}

void Applier::add(Arrived record) { queue({std::move(record), {}, {}}); }

void Applier::commit(store::CommitRecord record, std::vector<std::byte> note) {
    queue({std::nullopt, std::move(record), std::move(note)});
}

void Applier::queue(Work work) {
    {
        const std::lock_guard lock(mutex_);
        work_.push_back(std::move(work));
    }
    changed_.notify_all();
}

std::optional<Applied> Applier::committed() {
    const std::lock_guard lock(mutex_);
    if (error_) throw Error(*error_);
    return std::exchange(committed_, std::nullopt);
}

std::optional<Applied> Applier::begin_again() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
    error_.reset();
    forget_records();
    return std::exchange(committed_, std::nullopt);
}

void Applier::forget_records() { std::fill(written_.begin(), written_.end(), std::nullopt); }

void Applier::run() {
    pthread_setname_np(pthread_self(), "luwu-applies");
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return stops_ || !work_.empty(); });
        if (stops_) return;
        Work work = std::move(work_.front());
        work_.pop_front();
        busy_ = true;
        const bool failed = error_.has_value();
        lock.unlock();
        std::optional<Error> error;
        try {
            if (!failed) apply(work);
        } catch (const Error& caught) {
            error = caught;
        }
        lock.lock();
        busy_ = false;
        if (work.record) free_.push_back(std::move(work.record->memory));
        // With a text of its own: copies of an exception share one, which ThreadSanitizer does not see them count.
        if (error) error_.emplace(error->kind(), error->what(), error->shortage());
        if (!failed && !error && !work.record) committed_ = {store_.committed().step, std::move(work.note)};
        lock.unlock();
        changed_.notify_all();
        done_();
        lock.lock();
    }
}

void Applier::apply(Work& work) {
    if (work.record) return write(*work.record);
    require_records(work.commit);
    store_.commit(std::move(work.commit));
    attempt_ = 0;
}

// A commit without one of its records would name a chunk that this store does not have, and lose the one that it has.
void Applier::require_records(const store::CommitRecord& commit) const {
    const auto chunks = store_.layout().chunks();
    for (std::uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
        const store::ChunkPlace& place = chunks[chunk];
        const std::uint64_t count = commit.counts[place.block];
        const std::uint64_t stands_at = store_.committed().counts[place.block];
        if (store_.initialised() && count == stands_at) continue;
        if (written_[chunk] == count && (!store_.initialised() || count > stands_at)) continue;
        throw Error(ErrorKind::invalid, "the commit of step " + std::to_string(commit.step) +
                                            " came without the record of block '" +
                                            store_.layout().shape().blocks[place.block].name + "', chunk " +
                                            std::to_string(place.chunk) + ", after " + std::to_string(count) +
                                            " updates: expected it first; connect again to get all of them");
    }
}

// The store's own attempts differ from the server's, so the header gets this store's.
void Applier::write(Arrived& record) {
    const store::ChunkPlace& place = store_.layout().chunks()[record.chunk];
    std::byte* const states = record.memory.data() + place.parameter_bytes;
    const store::ChunkHeader came = checked(place, record.count, record.memory.data());
    store_.prepare_to_fill(place, record.count);
    if (place.trainable) {
        // The server has begun its step again: what this store has of the attempt before is of no use.
        if (attempt_ != 0 && attempt_ != came.attempt) {
            store_.begin_again();
            forget_records();
        }
        attempt_ = came.attempt;
    }
    store::ChunkHeader header = store_.records().make_header(place, record.count);
    header.parameter_crc = came.parameter_crc;
    header.state_crc = came.state_crc;
    store::seal(header);
    std::memcpy(states, &header, sizeof header);
    store::IoRequest request = store_.records().write_record(place, record.count, record.memory.data(), states);
    store::transfer_now(request);
    if (request.error != 0) throw store_.records().failed(request, place, record.count);
    written_[record.chunk] = record.count;
}

store::ChunkHeader Applier::checked(const store::ChunkPlace& place, std::uint64_t count,
                                    const std::byte* memory) const {
    const auto refuse = [&](const std::string& what) {
        return Error(ErrorKind::corrupt, "the record of block '" + store_.layout().shape().blocks[place.block].name +
                                             "', chunk " + std::to_string(place.chunk) + ", came with " + what +
                                             "; look at the memory and the network of both machines");
    };
    const std::byte* const states = memory + place.parameter_bytes;
    const store::ChunkHeader header = store::load_chunk_header(states);
    if (!store::valid(header)) throw refuse("a damaged header");
    if (header.uuid != store_.uuid() || header.block != place.block || header.chunk != place.chunk ||
        header.elements != place.elements || header.planes != place.state_planes || header.count != count) {
        throw refuse("the header of another record");
    }
    const std::uint64_t bytes = place.elements * store_.layout().parameter_size(place.block);
    bool same = kernels::crc32c(0, memory, bytes) == header.parameter_crc;
    for (std::uint32_t plane = 0; plane < place.state_planes; ++plane) {
        const std::byte* const values = states + place.plane_offset(plane);
        same = same && kernels::crc32c(0, values, place.plane_bytes[plane]) == header.state_crc[plane];
    }
    if (!same) throw refuse("other bytes than its checksums say");
    return header;
}

}  // namespace luwu::standby
