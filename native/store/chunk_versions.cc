#include "store/chunk_versions.h"

#include <algorithm>
#include <string>

#include "store/error.h"

namespace luwu::store {

void ChunkVersions::stand_at(const CommitRecord& committed) {
    committed_version_ = committed.version;
    attempt_ = std::max(attempt_, store::attempt_of(committed.opening, 1));
    frozen_attempt_ = committed.frozen_attempt;
    if (committed.has_values) note_versions(committed);
    attempts_[committed.version] = committed.has_values ? committed.version_attempt : committed.frozen_attempt;
    attempts_[1 - committed.version] = attempt_;
}

void ChunkVersions::go_on(const CommitRecord& committed) {
    committed_version_ = committed.version;
    if (even_version_.empty()) note_versions(committed);
    begin_again();
}

// From one commit to the next, each trainable block's count rises by one and the version changes. So this, once it is
// known, tells the version of every count, while commits are being made in another thread, too.
void ChunkVersions::note_versions(const CommitRecord& committed) {
    even_version_.clear();
    for (const std::uint64_t count : committed.counts) {
        even_version_.push_back(static_cast<std::uint8_t>(committed.version ^ (count & 1U)));
    }
}

// Changes only the other version's attempt: other threads may be reading chunks of the committed version.
void ChunkVersions::begin_again() { attempts_[1 - committed_version_] = ++attempt_; }

std::uint32_t ChunkVersions::version_of(const ChunkPlace& place, std::uint64_t count) const {
    return even_version_.empty() ? 0 : even_version_[place.block] ^ (count & 1U);
}

std::uint64_t ChunkVersions::attempt_of(const ChunkPlace& place, std::uint64_t count) const {
    return place.trainable ? attempts_[version_of(place, count)] : frozen_attempt_;
}

std::uint32_t version_after(const Layout& layout, const CommitRecord& before, const CommitRecord& record) {
    std::uint32_t updated = 0;
    std::uint32_t trainable = 0;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        if (!layout.shape().blocks[block].trainable) continue;
        ++trainable;
        if (record.counts[block] == before.counts[block] + 1) ++updated;
    }
    if (updated != 0 && updated != trainable) {
        throw Error(ErrorKind::order, "step " + std::to_string(record.step) + " updated " + std::to_string(updated) +
                                          " of " + std::to_string(trainable) +
                                          " trainable blocks; a commit has to have all of them");
    }
    return updated == 0 ? before.version : 1 - before.version;
}

}  // namespace luwu::store
