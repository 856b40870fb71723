// The record of each chunk on the disk: where it is, what its header says, and what is wrong with it.
#pragma once

#include <cstdint>
#include <vector>

#include "store/chunk_versions.h"
#include "store/io_engine.h"
#include "store/layout.h"
#include "store/records.h"
#include "store/stripe_files.h"

namespace luwu::store {

// A view of a store's files, which have to outlive it. Any thread may use it, also while another commits.
class ChunkRecords {
  public:
    ChunkRecords(const Layout& layout, const Uuid& uuid, const std::vector<StripeFiles>& stripes,
                 const ChunkVersions& versions)
        : layout_(&layout), uuid_(&uuid), stripes_(&stripes), versions_(&versions) {}

    // Requests for one chunk's record at an update count. `header` is one page; states are header page and planes.
    [[nodiscard]] IoRequest read_parameters(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                            void* header) const;
    [[nodiscard]] IoRequest read_header(const ChunkPlace& place, std::uint64_t count, void* header) const;
    [[nodiscard]] IoRequest read_states(const ChunkPlace& place, std::uint64_t count, void* states) const;
    [[nodiscard]] IoRequest read_record(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                        void* states) const;
    [[nodiscard]] IoRequest write_record(const ChunkPlace& place, std::uint64_t count, void* parameters,
                                         void* states) const;

    [[nodiscard]] ChunkHeader make_header(const ChunkPlace& place, std::uint64_t count) const;
    // Throws Error(corrupt or format) naming file and offset unless the header belongs to this chunk and count, and was
    // written by the attempt that the commit names, or by the present one.
    void check_header(const ChunkHeader& header, const ChunkPlace& place, std::uint64_t count) const;
    // The error for a plane whose checksum is wrong; plane 0 is the parameters, 1.. the states.
    [[nodiscard]] Error damaged(const ChunkPlace& place, std::uint64_t count, std::uint32_t plane) const;
    [[nodiscard]] Error failed(const IoRequest& request, const ChunkPlace& place, std::uint64_t count) const;

    // True if any chunk was ever written where first values are.
    [[nodiscard]] bool any_written() const;

  private:
    [[nodiscard]] const File& file_of(const ChunkPlace& place, std::uint64_t count) const;

    const Layout* layout_;
    const Uuid* uuid_;
    const std::vector<StripeFiles>* stripes_;
    const ChunkVersions* versions_;
};

}  // namespace luwu::store
