// The state of a standby when its server connects, and how the two compare their stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/chunk_store.h"

namespace luwu::standby {

struct Standing {
    store::CommitRecord record;
    std::uint32_t digest = 0;  // of the checksums of all committed chunks: two stores with one have the same values
};

[[nodiscard]] std::uint32_t digest_of(const store::ChunkStore& store);  // reads every chunk's header; throws Error

// Empty for a store without values.
[[nodiscard]] std::vector<std::byte> encode_standing(const store::ChunkStore& store);
// Nothing for no bytes. Throws Error(invalid) where they are no standing of a store of this layout and id.
[[nodiscard]] std::optional<Standing> decode_standing(std::span<const std::byte> bytes, const store::ChunkStore& store);

// True if the two have made the same steps; the values may differ.
[[nodiscard]] bool same_counts(const store::CommitRecord& one, const store::CommitRecord& other);

}  // namespace luwu::standby
