#include "store/chunk_store.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "store/aligned_buffer.h"
#include "store/lock_file.h"

namespace luwu::store {

namespace {

constexpr const char* kCommitName = "/commit.luwu";
constexpr const char* kLockName = "/lock";
constexpr const char* kScratchName = "/scratch.luwu";
constexpr int kReadsOfDamage = 3;
constexpr std::uint64_t kLastOpening = ~std::uint32_t{0};  // attempt_of() has 32 bits for it

// The number of the opening after this one. It grows by chance, so that two copies of a store that are trained apart
// have other attempts, and chunks of the one are not taken for the other's.
std::uint64_t next_opening(std::uint64_t opening) {
    constexpr std::uint64_t kMostSkipped = 0xFFFF;
    std::random_device random;
    const std::uint64_t skipped = random() & kMostSkipped;
    if (opening + 1 + skipped <= kLastOpening - kMostSkipped) return opening + 1 + skipped;
    return std::min(opening + 1, kLastOpening);
}

const char* record_name(const std::vector<std::string>& folders) {
    const bool snapshot = !folders.empty() && file_exists(folders[0] + kSnapshotRecordName);
    return snapshot ? kSnapshotRecordName : kCommitName;
}

}  // namespace

ChunkStore::ChunkStore(const std::vector<std::string>& folders, const Layout& layout, const Uuid& uuid, OpenMode mode)
    : layout_(layout), uuid_(uuid), folders_(folders), commits_(folders_, record_name(folders_), layout_, uuid_) {
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
        for (const std::string& folder : folders) locks_.push_back(lock_store(folder + kLockName));
    }
    for (std::uint32_t stripe = 0; stripe < folders.size(); ++stripe) {
        stripes_.emplace_back(folders[stripe], layout_, stripe, uuid_);
    }
    mode == OpenMode::create ? create() : open(mode);
}

// Makes the records first, which say that there are no values: as long as they say so, no file here is worth keeping.
// Records of a creation that was interrupted stay until the new ones replace them.
void ChunkStore::create() {
    bool begun = false;
    for (const std::string& folder : folders_) {
        const std::string commit_path = folder + kCommitName;
        if (!file_exists(commit_path)) continue;
        begun = true;
        if (!says_no_values(commit_path)) {
            throw Error(ErrorKind::corrupt, folder +
                                                " holds a store whose manifest is missing; put its manifest.json "
                                                "back or choose another folder (nothing was changed)");
        }
    }
    for (const std::string& folder : folders_) {
        if (begun || !StripeFiles::holds_chunks(folder)) continue;
        throw Error(ErrorKind::corrupt, folder + " holds chunks of a store whose " + folder + kCommitName +
                                            " is missing; choose another folder (nothing was changed)");
    }
    for (const std::string& folder : folders_) StripeFiles::remove(folder);
    try {
        CommitRecord record;
        record.opening = 1;
        record.frozen_attempt = store::attempt_of(record.opening, 0);
        record.counts.resize(layout_.block_count());
        commits_.create(record);
        for (StripeFiles& stripe : stripes_) stripe.create();
        for (const std::string& folder : folders_) sync_folder(folder);
        note({.newest = std::move(record), .before = {}, .never_written = false, .findings = {}});
    } catch (...) {
        remove_created();
        throw;
    }
}

// Chunks without records are refused as another's: the records go last, after a power cut, too.
void ChunkStore::remove_created() const {
    for (const std::string& folder : folders_) StripeFiles::remove(folder);
    for (const std::string& folder : folders_) {
        try {
            sync_folder(folder);
        } catch (const Error&) {
            return;  // the records stay: they say that there are no values
        }
        unlink((folder + kCommitName).c_str());
    }
}

void ChunkStore::open(OpenMode mode) {
    const bool read_only = mode == OpenMode::read_only;
    for (StripeFiles& stripe : stripes_) stripe.open(read_only);
    Commits found = commits_.read();
    // Damage may be a record that another process is writing, so read again.
    for (int again = 0; read_only && !found.findings.empty() && again < kReadsOfDamage; ++again)
        found = commits_.read();
    if (found.never_written) {
        for (const StripeFiles& stripe : stripes_) stripe.require(0);  // first values are there, if anywhere
        if (has_chunks()) {
            throw Error(ErrorKind::corrupt, commits_.path() +
                                                " is empty, and there are chunks; the store cannot tell "
                                                "which step it holds: put the file back from a copy");
        }
        found.newest.counts.resize(layout_.block_count());
    }
    look_at_other_version(found);
    if (!read_only) {
        found.newest.opening = next_opening(found.newest.opening);
        if (mode != OpenMode::restore) {
            for (const StripeFiles& stripe : stripes_) stripe.require(found.newest.version);
        }
        if (!found.newest.has_values && mode == OpenMode::open) {
            found.newest.frozen_attempt = store::attempt_of(found.newest.opening, 0);
        }
        commits_.open_for_writing(found);
        // After the records: where chunks are lost, no record names them any more.
        for (StripeFiles& stripe : stripes_) replaced_ = stripe.mend(1 - found.newest.version) || replaced_;
    }
    note(std::move(found), mode != OpenMode::restore);
}

// Damage to the version that nothing committed is in is a finding; a snapshot has no such version.
void ChunkStore::look_at_other_version(Commits& found) const {
    if (commits_.path().ends_with(kSnapshotRecordName)) return;
    const std::uint32_t other = 1 - found.newest.version;
    for (const StripeFiles& stripe : stripes_) {
        if (!stripe.damaged(other)) continue;
        found.findings.push_back(stripe.finding(other));
        if (stripe.lost(other)) found.before.reset();
    }
}

void ChunkStore::note(Commits commits, bool require_chunks) {
    committed_ = std::move(commits.newest);
    before_ = std::move(commits.before);
    findings_ = std::move(commits.findings);
    for (const StripeFiles& stripe : stripes_) {
        if (require_chunks) stripe.require(committed_.version);
    }
    attempt_ = std::max(attempt_, store::attempt_of(committed_.opening, 1));
    frozen_attempt_ = committed_.frozen_attempt;
    if (initialised()) note_versions();
    note_attempts();
}

// From one commit to the next, each trainable block's count rises by one and the version changes. So this, once it is
// known, tells the version of every count, while commits are being made in another thread, too.
void ChunkStore::note_versions() {
    even_version_.clear();
    for (const std::uint64_t count : committed_.counts) {
        even_version_.push_back(static_cast<std::uint8_t>(committed_.version ^ (count & 1U)));
    }
}

void ChunkStore::note_attempts() {
    attempts_[committed_.version] = initialised() ? committed_.version_attempt : committed_.frozen_attempt;
    attempts_[1 - committed_.version] = attempt_;
}

std::uint32_t ChunkStore::version_of(const ChunkPlace& place, std::uint64_t count) const {
    return even_version_.empty() ? 0 : even_version_[place.block] ^ (count & 1U);
}

std::uint64_t ChunkStore::attempt_of(const ChunkPlace& place, std::uint64_t count) const {
    return place.trainable ? attempts_[version_of(place, count)] : frozen_attempt_;
}

const File& ChunkStore::file_of(const ChunkPlace& place, std::uint64_t count) const {
    const StripeFiles& stripe = stripes_[place.stripe];
    return place.trainable ? stripe.version(version_of(place, count)) : stripe.frozen();
}

// True if any chunk was ever written where first values are.
bool ChunkStore::has_chunks() const {
    const AlignedBuffer page(kPage);
    return std::any_of(layout_.chunks().begin(), layout_.chunks().end(), [&](const ChunkPlace& place) {
        read_now(file_of(place, 0), page.data(), kPage, place.offset + place.parameter_bytes);
        return std::any_of(page.data(), page.data() + kPage, [](std::byte byte) { return byte != std::byte{0}; });
    });
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
    header.attempt = attempt_of(place, count);
    return header;
}

void ChunkStore::check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const {
    const std::string where =
        file_of(place, count).path() + " at offset " + std::to_string(place.offset + place.parameter_bytes) +
        " (block '" + layout_.shape().blocks[place.block].name + "', chunk " + std::to_string(place.chunk) + ")";
    if (header.magic == ChunkHeader{}.magic && !is_read(header.version)) {
        throw other_format(file_of(place, count).path(), place.offset + place.parameter_bytes, header.version);
    }
    if (!valid(header)) throw Error(ErrorKind::corrupt, where + ": the chunk header's checksum is wrong");
    if (header.uuid != uuid_ || header.block != place.block || header.chunk != place.chunk ||
        header.elements != place.elements || header.count != count) {
        throw Error(ErrorKind::corrupt, where + ": expected update count " + std::to_string(count) + ", found block " +
                                            std::to_string(header.block) + ", chunk " + std::to_string(header.chunk) +
                                            ", update count " + std::to_string(header.count));
    }
    const std::uint64_t attempt = attempt_of(place, count);
    if (header.attempt == attempt) return;
    const auto in_words = [](std::uint64_t number) {
        return std::to_string(number >> 32U) + "." + std::to_string(number & 0xFFFFFFFFU);
    };
    throw Error(ErrorKind::corrupt, where + ": the chunk was written by another attempt at this step, " +
                                        in_words(header.attempt) + " where " + in_words(attempt) +
                                        " was expected; the disk lost a write that it had acknowledged");
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

// Syncs only files that were written to: a sync of a file without changes costs the disk a flush, too.
void ChunkStore::sync() {
    for (const StripeFiles& stripe : stripes_) {
        if (writing_) stripe.sync(1 - committed_.version);
        if (filling_) stripe.sync(committed_.version);
        if (filling_) stripe.sync_frozen();
    }
    if (!std::exchange(replaced_, false)) return;
    for (const std::string& folder : folders_) sync_folder(folder);
    for (StripeFiles& stripe : stripes_) stripe.forget_replaced();
}

void ChunkStore::commit(CommitRecord record) {
    sync();
    writing_ = filling_ = false;
    const bool first = !initialised();
    record.sequence = committed_.sequence + 1;
    record.version = first ? 0 : version_after(record);
    record.has_values = true;
    record.opening = committed_.opening;
    record.version_attempt = attempts_[record.version];
    record.frozen_attempt = committed_.frozen_attempt;
    first ? commits_.commit_alone(record) : commits_.commit(record, committed_);
    CommitRecord last = std::exchange(committed_, std::move(record));
    if (first) {
        note_versions();
    } else {
        before_ = std::move(last);
    }
    begin_again();
}

// Changes only the other version's attempt: other threads may be reading chunks of the committed version.
void ChunkStore::begin_again() { attempts_[1 - committed_.version] = ++attempt_; }

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

void ChunkStore::stand_at(CommitRecord record) {
    record.sequence = committed_.sequence + 1;
    record.opening = committed_.opening;
    record.frozen_attempt = committed_.frozen_attempt;
    commits_.commit_alone(record);
    committed_ = std::move(record);
    before_.reset();
    note_versions();
    note_attempts();
}

// The last commit's record has to go, because the updates of the next step overwrite the version that it names.
void ChunkStore::go_back() {
    if (!before_) throw Error(ErrorKind::order, commits_.path() + " holds no commit before the last one");
    stand_at(*before_);
}

void ChunkStore::make_room() {
    for (StripeFiles& stripe : stripes_) stripe.make_room();
}

std::uint64_t ChunkStore::compact() {
    stand_at(committed_);  // the record of the commit before goes before its version does
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
    writing_ = true;  // not earlier: after Error(no_space) the caller tries again
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
    note(commits_.read());
    return committed_.sequence != sequence;
}

void ChunkStore::prepare_to_fill(const ChunkPlace& place, std::uint64_t count) {
    if (initialised()) {
        if (!place.trainable || version_of(place, count) == committed_.version) {
            throw Error(ErrorKind::order, "the store at " + folders_[0] + " has values already; nothing was changed");
        }
        prepare_to_write();
        return;
    }
    const std::lock_guard turn(spare_turn_);
    if (locks_.empty()) throw Error(ErrorKind::order, folders_[0] + " was opened to be read: it cannot be written to");
    if (filling_) return;
    for (StripeFiles& stripe : stripes_) {
        replaced_ = stripe.unshare(committed_.version) || replaced_;
        replaced_ = stripe.unshare_frozen() || replaced_;
    }
    filling_ = true;  // not earlier: after Error(no_space) the caller tries again
}

void ChunkStore::restore(const ChunkStore& snapshot) {
    stand_at(committed_);  // the record of the commit before goes before its version does
    CommitRecord record = snapshot.committed();
    const std::uint32_t version = 1 - committed_.version;
    for (std::uint32_t stripe = 0; stripe < folders_.size(); ++stripe) {
        stripes_[stripe].take_over(snapshot.folders()[stripe], record.version, version);
    }
    for (const std::string& folder : folders_) sync_folder(folder);
    record.version = version;
    stand_at(std::move(record));
}

}  // namespace luwu::store
