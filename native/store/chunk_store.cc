#include "store/chunk_store.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace luwu::store {

namespace {

constexpr const char* kCommitName = "/commit.luwu";
constexpr const char* kLockName = "/lock";
constexpr const char* kScratchName = "/scratch.luwu";

}  // namespace

ChunkStore::ChunkStore(const std::vector<std::string>& folders, const Layout& layout, const Uuid& uuid, OpenMode mode)
    : layout_(layout), uuid_(uuid), folders_(folders) {
    if (folders.size() != layout.stripes()) {
        throw Error(ErrorKind::invalid, "the layout has " + std::to_string(layout.stripes()) + " stripes but " +
                                            std::to_string(folders.size()) + " folders were named");
    }
    if (mode != OpenMode::read_only) {
        if (file_exists(folders[0] + kSnapshotRecordName)) {
            throw Error(ErrorKind::invalid,
                        folders[0] +
                            " is a snapshot, which is only read: restore it (luwu snapshot restore) "
                            "and open the store that it is one of");
        }
        for (const std::string& folder : folders) locks_.push_back(lock_file(folder + kLockName));
    }
    for (std::uint32_t stripe = 0; stripe < folders.size(); ++stripe) {
        stripes_.emplace_back(folders[stripe], layout_, stripe, uuid_);
    }
    if (mode == OpenMode::create) {
        create();
    } else {
        open(mode == OpenMode::read_only);
    }
    note_commits();
}

// The commit file comes first and is empty until the first commit: while it is, nothing here is worth keeping.
void ChunkStore::create() {
    const std::string commit_path = folders_[0] + kCommitName;
    if (holds_commit(commit_path)) {
        throw Error(ErrorKind::corrupt, folders_[0] +
                                            " holds a store whose manifest is missing; put its manifest.json back "
                                            "or choose another folder (nothing was changed)");
    }
    const auto remove_all = [&] {
        unlink(commit_path.c_str());
        for (const std::string& folder : folders_) StripeFiles::remove(folder);
    };
    if (!file_exists(commit_path)) {
        for (const std::string& folder : folders_) {
            if (StripeFiles::holds_chunks(folder)) {
                throw Error(ErrorKind::corrupt, folder + " holds chunks of a store whose " + commit_path +
                                                    " is missing; choose another folder (nothing was changed)");
            }
        }
    }
    remove_all();
    try {
        commits_ = CommitFile::create(commit_path, layout_, uuid_);
        for (StripeFiles& stripe : stripes_) stripe.create();
        for (const std::string& folder : folders_) sync_folder(folder);
    } catch (...) {
        remove_all();
        throw;
    }
}

void ChunkStore::open(bool read_only) {
    for (StripeFiles& stripe : stripes_) stripe.open(read_only);
    const bool snapshot = file_exists(folders_[0] + kSnapshotRecordName);
    commits_ = CommitFile(folders_[0] + (snapshot ? kSnapshotRecordName : kCommitName), layout_, uuid_, read_only);
    if (read_only) return;  // a snapshot has one version
    for (const StripeFiles& stripe : stripes_) {
        for (std::uint32_t version = 0; version < kVersions; ++version) stripe.require(version);
    }
}

void ChunkStore::note_commits() {
    Commits found = commits_.read();
    committed_ = std::move(found.newest);
    before_ = std::move(found.before);
    for (const StripeFiles& stripe : stripes_) stripe.require(committed_.version);
    if (initialised()) note_versions();
}

// From one commit to the next, each trainable block's count rises by one and the version changes. So this, once it is
// known, tells the version of every count, while commits are being made in another thread, too.
void ChunkStore::note_versions() {
    even_version_.clear();
    for (const std::uint64_t count : committed_.counts) {
        even_version_.push_back(static_cast<std::uint8_t>(committed_.version ^ (count & 1U)));
    }
}

const File& ChunkStore::file_of(const ChunkPlace& place, std::uint64_t count) const {
    const StripeFiles& stripe = stripes_[place.stripe];
    if (!place.trainable) return stripe.frozen();
    return stripe.version(even_version_.empty() ? 0 : even_version_[place.block] ^ (count & 1U));
}

IoRequest ChunkStore::read_parameters(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                      void* header) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset;
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(header, kPage);
    return request;
}

IoRequest ChunkStore::read_states(const ChunkPlace& place, std::uint64_t count, void* states) const {
    IoRequest request;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset + place.parameter_bytes;
    request.add_part(states, place.state_bytes());
    return request;
}

IoRequest ChunkStore::write_record(const ChunkPlace& place, std::uint64_t count, void* parameters, void* states) const {
    IoRequest request;
    request.operation = IoRequest::Operation::write;
    request.file = file_of(place, count).descriptor();
    request.offset = place.offset;
    request.add_part(parameters, place.parameter_bytes);
    request.add_part(states, place.state_bytes());
    return request;
}

ChunkHeader ChunkStore::make_header(const ChunkPlace& place, std::uint64_t count) const {
    ChunkHeader header;
    header.block = place.block;
    header.chunk = place.chunk;
    header.planes = place.state_planes;
    header.elements = place.elements;
    header.count = count;
    header.uuid = uuid_;
    return header;
}

void ChunkStore::check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const {
    const std::string where =
        file_of(place, count).path() + " at offset " + std::to_string(place.offset + place.parameter_bytes) +
        " (block '" + layout_.shape().blocks[place.block].name + "', chunk " + std::to_string(place.chunk) + ")";
    if (header.magic == ChunkHeader{}.magic && header.version != kFormatVersion) {
        throw other_format(file_of(place, count).path(), place.offset + place.parameter_bytes, header.version);
    }
    if (!valid(header)) throw Error(ErrorKind::corrupt, where + ": the chunk header's checksum is wrong");
    if (header.uuid != uuid_ || header.block != place.block || header.chunk != place.chunk ||
        header.elements != place.elements || header.count != count) {
        throw Error(ErrorKind::corrupt, where + ": expected update count " + std::to_string(count) + ", found block " +
                                            std::to_string(header.block) + ", chunk " + std::to_string(header.chunk) +
                                            ", update count " + std::to_string(header.count));
    }
}

Error ChunkStore::damaged(const ChunkPlace& place, std::uint64_t count, std::uint32_t plane) const {
    std::uint64_t offset = place.offset;
    if (plane > 0) offset += place.parameter_bytes + place.plane_offset(plane - 1);
    return {ErrorKind::corrupt, file_of(place, count).path() + " at offset " + std::to_string(offset) + " (block '" +
                                    layout_.shape().blocks[place.block].name + "', chunk " +
                                    std::to_string(place.chunk) + ", plane " + std::to_string(plane) +
                                    "): the checksum is wrong; the disk returned other bytes than were written"};
}

Error ChunkStore::no_values() const {
    return {ErrorKind::empty, "the store at " + folders_[0] +
                                  " has no values yet: expected first values before anything is read; train or import "
                                  "into it first"};
}

Error ChunkStore::failed(const IoRequest& request, const ChunkPlace& place, std::uint64_t count) const {
    const bool reading = request.operation == IoRequest::Operation::read;
    return system_error(reading ? "read" : "write",
                        file_of(place, count).path() + " at offset " + std::to_string(request.offset), request.error,
                        std::max(place.record_bytes(), hole_bytes(request.file)));
}

bool ChunkStore::direct() const {
    return std::all_of(stripes_.begin(), stripes_.end(), [](const StripeFiles& stripe) { return stripe.direct(); });
}

void ChunkStore::sync() {
    for (const StripeFiles& stripe : stripes_) stripe.sync();
    if (!std::exchange(replaced_, false)) return;
    for (const std::string& folder : folders_) sync_folder(folder);
    for (StripeFiles& stripe : stripes_) stripe.forget_replaced();
}

void ChunkStore::commit(CommitRecord record) {
    sync();
    writing_ = false;
    record.sequence = committed_.sequence + 1;
    record.version = initialised() ? version_after(record) : 0;
    commits_.write(record);
    CommitRecord last = std::exchange(committed_, std::move(record));
    if (last.sequence > 0) {
        before_ = std::move(last);
    } else {
        note_versions();
    }
}

// Whose files a commit's chunks have been written to: all of them to the other version's, or none to any.
std::uint32_t ChunkStore::version_after(const CommitRecord& record) const {
    std::uint32_t updated = 0;
    std::uint32_t trainable = 0;
    for (std::uint32_t block = 0; block < layout_.block_count(); ++block) {
        if (!layout_.shape().blocks[block].trainable) continue;
        ++trainable;
        if (record.counts[block] == committed_.counts[block] + 1) ++updated;
    }
    if (updated != 0 && updated != trainable) {
        throw Error(ErrorKind::order, "step " + std::to_string(record.step) + " updated " + std::to_string(updated) +
                                          " of " + std::to_string(trainable) +
                                          " trainable blocks; a commit has to have all of them");
    }
    return updated == 0 ? committed_.version : 1 - committed_.version;
}

std::vector<File> ChunkStore::make_scratch() const {
    std::vector<File> files;
    for (const std::string& folder : folders_) {
        const std::string path = folder + kScratchName;
        unlink(path.c_str());  // of a process that was killed between the next two lines
        files.push_back(open_file(path, true, false));
        unlink(path.c_str());
    }
    return files;
}

// The record has to go, because the updates of the next step overwrite the versions that it speaks of.
void ChunkStore::go_back() {
    if (!before_) throw Error(ErrorKind::order, commits_.path() + " holds no commit before the last one");
    commits_.erase(committed_.sequence);
    committed_ = *std::exchange(before_, std::nullopt);
    note_versions();
}

void ChunkStore::forget_before() {
    if (before_) commits_.erase(before_->sequence);
    before_.reset();
}

void ChunkStore::make_room() {
    for (StripeFiles& stripe : stripes_) stripe.make_room();
}

std::uint64_t ChunkStore::compact() {
    forget_before();  // durably, before what it speaks of goes
    std::uint64_t given = 0;
    for (StripeFiles& stripe : stripes_) given += stripe.drop(1 - committed_.version);
    for (const std::string& folder : folders_) sync_folder(folder);
    return given;
}

bool ChunkStore::prepare_to_write() {
    if (locks_.empty()) throw Error(ErrorKind::order, folders_[0] + " was opened to be read: it cannot be trained");
    if (writing_) return false;
    const std::uint32_t version = 1 - committed_.version;
    const std::lock_guard turn(spare_turn_);
    for (StripeFiles& stripe : stripes_) replaced_ = stripe.unshare(version) || replaced_;
    writing_ = true;  // not before: where there was no room, it is tried again
    return true;
}

void ChunkStore::reserve_spare(std::uint32_t version) const {
    const std::lock_guard turn(spare_turn_);
    for (const StripeFiles& stripe : stripes_) stripe.reserve_spare(version);
}

void ChunkStore::link_to(std::uint32_t stripe, const std::string& folder) const {
    stripes_[stripe].link_to(folder, committed_.version);
}

bool ChunkStore::look_again() {
    const std::uint64_t sequence = committed_.sequence;
    note_commits();
    return committed_.sequence != sequence;
}

void ChunkStore::restore(const ChunkStore& snapshot) {
    CommitRecord record = snapshot.committed();
    const std::uint32_t version = 1 - committed_.version;
    forget_before();  // durably, before what it speaks of goes
    for (std::uint32_t stripe = 0; stripe < folders_.size(); ++stripe) {
        stripes_[stripe].take_over(snapshot.folders()[stripe], record.version, version);
    }
    for (const std::string& folder : folders_) sync_folder(folder);
    record.version = version;
    record.sequence = committed_.sequence + 1;
    commits_.write(record);
    before_ = std::exchange(committed_, std::move(record));
    note_versions();
    forget_before();
}

}  // namespace luwu::store
