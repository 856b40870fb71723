// Speed of a disk: the requests of a store, made by the same engine, on a file that is gone afterwards.
#pragma once

#include <cstdint>
#include <string>

#include "store/aligned_buffer.h"
#include "store/files.h"

namespace luwu::store {

// A repeated operation: read `read_bytes`, then write `write_bytes` from the same memory; either may be 0.
struct ProbeRequest {
    std::uint64_t read_bytes = 0;
    std::uint64_t write_bytes = 0;
    std::uint32_t in_flight = 12;  // as many as there are buffers for states in a server that has the memory
    double seconds = 1;
    Sharing sharing = Sharing::own;  // of the memory: parameters are read into some that workers share
};

struct ProbeResult {
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    double seconds = 0;
    double processor_seconds = 0;  // that this process spent meanwhile
    double sync_seconds = 0;       // until what was written was durable
};

class DiskProbe {
  public:
    // Writes the whole file: the first write of a block that was only reserved costs more than later ones. Throws Error
    // as a store does: no_space, permission, io.
    DiskProbe(const std::string& folder, std::uint64_t file_bytes);

    [[nodiscard]] bool direct() const { return direct_; }
    // Throws Error(invalid) for lengths that are no whole pages or do not fit into the file twice, and Error(io).
    [[nodiscard]] ProbeResult run(const ProbeRequest& request) const;

  private:
    void fill() const;

    std::uint64_t file_bytes_;
    bool direct_ = false;
    File file_;
};

}  // namespace luwu::store
