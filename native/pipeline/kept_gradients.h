// Gradients that are kept until their step is decided: permanently in memory, on disk, checksummed, or in a buffer for
// as long as they are kept. Not thread-safe, but different chunks' memory may be used at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/node_plan.h"
#include "schedule/residency.h"
#include "store/aligned_buffer.h"
#include "store/chunk_store.h"

namespace luwu::pipeline {

class KeptGradients {
  public:
    // `dtypes`: the kept gradients' dtype, per block.
    KeptGradients(const store::ChunkStore& store, const schedule::KeptPlan& plan, std::vector<kernels::Dtype> dtypes,
                  const schedule::NodePlan& nodes);

    // Takes the room on the disks, before anything is written. May be called again after Error(no_space).
    void reserve() const;

    [[nodiscard]] kernels::Dtype dtype(std::uint32_t block) const { return dtypes_[block]; }
    [[nodiscard]] bool on_disk(std::uint32_t chunk) const { return entries_[chunk].on_disk; }
    [[nodiscard]] bool pinned(std::uint32_t chunk) const { return entries_[chunk].pinned; }
    // Its place in memory; of one that is not pinned its buffer, null while it has none.
    [[nodiscard]] std::byte* memory(std::uint32_t chunk) const { return entries_[chunk].memory; }

    // For chunks that are not pinned. False: no buffer is free, try again when one was given back.
    [[nodiscard]] bool take_buffer(std::uint32_t chunk);
    void give_buffer_back(std::uint32_t chunk);  // if it has one
    [[nodiscard]] store::IoRequest write(std::uint32_t chunk) const;
    [[nodiscard]] store::IoRequest read(std::uint32_t chunk) const;
    [[nodiscard]] std::uint64_t bytes(std::uint32_t chunk) const { return entries_[chunk].bytes; }

    void set_squares(std::uint32_t chunk, double squares) { entries_[chunk].squares = squares; }
    [[nodiscard]] double squares(std::uint32_t chunk) const { return entries_[chunk].squares; }
    // Checksum of a buffer's contents: contents read back must have the checksum that was set when they were written.
    [[nodiscard]] std::uint32_t checksum(std::uint32_t chunk) const;
    void set_checksum(std::uint32_t chunk, std::uint32_t checksum) { entries_[chunk].checksum = checksum; }
    [[nodiscard]] std::uint32_t expected_checksum(std::uint32_t chunk) const { return entries_[chunk].checksum; }

    [[nodiscard]] Error failed(const store::IoRequest& request, std::uint32_t chunk) const;
    [[nodiscard]] Error damaged(std::uint32_t chunk) const;

  private:
    struct Entry {
        bool pinned = false;
        bool on_disk = false;
        std::byte* memory = nullptr;
        std::uint64_t bytes = 0;
        std::uint64_t offset = 0;  // in its stripe's scratch file
        std::uint32_t checksum = 0;
        double squares = 0;
    };

    std::byte* place_pinned(const schedule::NodePlan& nodes);  // each on its chunk's node; returns their end

    const store::Layout& layout_;
    std::vector<kernels::Dtype> dtypes_;
    std::vector<Entry> entries_;
    store::AlignedBuffer memory_;
    std::vector<std::uint64_t> file_bytes_;  // per stripe
    std::vector<std::byte*> free_buffers_;
    std::vector<store::File> files_;  // per stripe
};

}  // namespace luwu::pipeline
