#include "store/chunk_store.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "store/lock_file.h"

namespace luwu::store {

namespace {

constexpr const char* kCommitName = "/commit.luwu";
constexpr const char* kLockName = "/lock";
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

// Writes the records first, which mark the store as having no values: while they do, every file here may be replaced.
// Records of a creation that was interrupted stay until the new ones replace them.
void ChunkStore::create() {
    for (const std::string& folder : folders_) {
        const std::string commit_path = folder + kCommitName;
        const bool begun = file_exists(commit_path);
        if (begun && !says_no_values(commit_path)) {
            throw Error(ErrorKind::corrupt, folder +
                                                " holds a store whose manifest is missing; put its manifest.json "
                                                "back or choose another folder (nothing was changed)");
        }
        if (begun || !StripeFiles::holds_chunks(folder)) continue;  // chunks never come before their folder's record
        throw Error(ErrorKind::corrupt, folder + " holds chunks of a store whose " + folder + kCommitName +
                                            " is missing; choose another folder (nothing was changed)");
    }
    for (const std::string& folder : folders_) StripeFiles::remove(folder);
    try {
        CommitRecord record;
        record.opening = 1;
        record.frozen_attempt = attempt_of(record.opening, 0);
        record.counts.resize(layout_.block_count());
        commits_.create(record);
        for (StripeFiles& stripe : stripes_) stripe.create();
        for (const std::string& folder : folders_) sync_folder(folder);
        note({.newest = std::move(record), .before = {}, .never_written = false, .findings = {}, .other_time = {}});
    } catch (...) {
        remove_created();
        throw;
    }
}

// Removes the records last, after a power cut, too: chunks without records would be refused as another store's.
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
        if (records().any_written()) {
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
            found.newest.frozen_attempt = attempt_of(found.newest.opening, 0);
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
    versions_.stand_at(committed_);
}

Error ChunkStore::no_values() const {
    return {ErrorKind::empty, "the store at " + folders_[0] +
                                  " has no values yet: expected first values before anything is read; train or import "
                                  "into it first"};
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
    record.version = first ? 0 : version_after(layout_, committed_, record);
    record.has_values = true;
    record.opening = committed_.opening;
    record.version_attempt = versions_.attempt(record.version);
    record.frozen_attempt = committed_.frozen_attempt;
    first ? commits_.commit_alone(record) : commits_.commit(record, committed_);
    CommitRecord last = std::exchange(committed_, std::move(record));
    if (!first) before_ = std::move(last);
    versions_.go_on(committed_);
}

void ChunkStore::stand_at(CommitRecord record) {
    record.sequence = committed_.sequence + 1;
    record.opening = committed_.opening;
    record.frozen_attempt = committed_.frozen_attempt;
    commits_.commit_alone(record);
    committed_ = std::move(record);
    before_.reset();
    versions_.stand_at(committed_);
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
        if (!place.trainable || versions_.version_of(place, count) == committed_.version) {
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

bool ChunkStore::filling_is_shared() const {
    return std::any_of(stripes_.begin(), stripes_.end(), [this](const StripeFiles& stripe) {
        return stripe.shared(committed_.version) || stripe.frozen_is_shared();
    });
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
