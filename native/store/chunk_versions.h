// Rules that tell which of a chunk's two versions has an update count, and which attempt at a step wrote it. Touches no
// file.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "store/layout.h"
#include "store/records.h"

namespace luwu::store {

class ChunkVersions {
  public:
    // The store stands at this commit, which may be another one than before. No other thread uses this meanwhile.
    void stand_at(const CommitRecord& committed);
    // This commit follows the one before. Other threads may be reading chunks of either.
    void go_on(const CommitRecord& committed);
    // A new attempt number for what is written from now on.
    void begin_again();

    [[nodiscard]] std::uint32_t version_of(const ChunkPlace& place, std::uint64_t count) const;
    // The attempt that a chunk's header has to name.
    [[nodiscard]] std::uint64_t attempt_of(const ChunkPlace& place, std::uint64_t count) const;
    [[nodiscard]] std::uint64_t attempt(std::uint32_t version) const { return attempts_[version]; }

  private:
    std::vector<std::uint64_t> first_counts_;  // per block, at the commit that the store was made to stand at; empty
                                               // before there are values
    // The last commit has this number of updates of each trainable block since first_counts_, times two, plus its
    // version. It is one number so that a thread that reads chunks sees both of one commit.
    std::atomic<std::uint64_t> committed_{0};
    std::array<std::uint64_t, kVersions> attempts_{};  // the attempt of each version: as committed, and the present one
    std::uint64_t attempt_ = 0;                        // the present one
    std::uint64_t frozen_attempt_ = 0;                 // the attempt that wrote the frozen chunks
};

// The version that a commit's chunks have been written to, after the commit before. Throws Error(order) where some
// trainable blocks were updated more often than others.
[[nodiscard]] std::uint32_t version_after(const Layout& layout, const CommitRecord& before, const CommitRecord& record);

}  // namespace luwu::store
