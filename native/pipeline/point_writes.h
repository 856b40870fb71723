// Step 6 of a commit point that follows: its records are written while later steps are made.
#pragma once

#include <cstdint>
#include <optional>

#include "pipeline/io_stage.h"
#include "pipeline/shared.h"
#include "schedule/record_queue.h"
#include "store/aligned_buffer.h"

namespace luwu::pipeline {

class PointWrites {
  public:
    explicit PointWrites(Shared& shared) : shared_(shared) {}

    void plan(std::uint64_t bytes);      // memory that copies of records may take
    void add(std::uint32_t chunk);       // its record in memory is sealed
    void follow();                       // every record of the commit point has been added
    void done(const IoTask& task);       // the record is on the disk
    void copy_one(std::uint32_t chunk);  // takes the lock
    // True: the record in memory may be changed. False: Updates::chunk_has() is called once it may.
    [[nodiscard]] bool may_change(std::uint32_t chunk);

  private:
    void write_next();
    void end_if_written();
    [[nodiscard]] std::byte* copy_of(std::uint32_t chunk) const;  // null: it has none

    Shared& shared_;
    std::optional<schedule::RecordQueue> queue_;
    std::uint64_t buffer_bytes_ = 0;
    store::AlignedBuffer memory_;
    bool follow_ = false;
};

}  // namespace luwu::pipeline
