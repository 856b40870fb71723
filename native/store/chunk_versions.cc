#include "store/chunk_versions.h"

#include <algorithm>
#include <string>

#include "store/error.h"

namespace luwu::store {

void ChunkVersions::stand_at(const CommitRecord& committed) {
    committed_ = committed.version;
    attempt_ = std::max(attempt_, store::attempt_of(committed.opening, 1));
    frozen_attempt_ = committed.frozen_attempt;
    if (committed.has_values) first_counts_ = committed.counts;
    attempts_[committed.version] = committed.has_values ? committed.version_attempt : committed.frozen_attempt;
    attempts_[1 - committed.version] = attempt_;
}

// Every trainable block has been updated as often as the others, and a frozen one never.
void ChunkVersions::go_on(const CommitRecord& committed) {
    if (first_counts_.empty()) first_counts_ = committed.counts;
    std::uint64_t updates = 0;
    for (std::size_t block = 0; block < committed.counts.size(); ++block) {
        updates = std::max(updates, committed.counts[block] - first_counts_[block]);
    }
    committed_ = updates * 2 + committed.version;
    begin_again();
}

// Changes only the other version's attempt: other threads may be reading chunks of the committed version.
void ChunkVersions::begin_again() { attempts_[1 - (committed_ & 1U)] = ++attempt_; }

std::uint32_t ChunkVersions::version_of(const ChunkPlace& place, std::uint64_t count) const {
    if (first_counts_.empty()) return 0;
    const std::uint64_t committed = committed_;
    const auto version = static_cast<std::uint32_t>(committed & 1U);
    return count - first_counts_[place.block] == committed / 2 ? version : 1 - version;
}

std::uint64_t ChunkVersions::attempt_of(const ChunkPlace& place, std::uint64_t count) const {
    return place.trainable ? attempts_[version_of(place, count)] : frozen_attempt_;
}

std::uint32_t version_after(const Layout& layout, const CommitRecord& before, const CommitRecord& record) {
    std::uint64_t most = 0;  // updates of a block since the commit before
    std::uint32_t updated = 0;
    std::uint32_t trainable = 0;
    for (std::uint32_t block = 0; block < layout.block_count(); ++block) {
        if (!layout.shape().blocks[block].trainable) continue;
        ++trainable;
        const std::uint64_t updates = record.counts[block] - before.counts[block];
        if (updates > most) updated = 0;
        most = std::max(most, updates);
        if (updates == most && most > 0) ++updated;
    }
    if (updated != 0 && updated != trainable) {
        throw Error(ErrorKind::order, "step " + std::to_string(record.step) + " updated " + std::to_string(updated) +
                                          " of " + std::to_string(trainable) +
                                          " trainable blocks; a commit has to have all of them");
    }
    return updated == 0 ? before.version : 1 - before.version;
}

}  // namespace luwu::store
