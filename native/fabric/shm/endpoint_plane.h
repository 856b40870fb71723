// The fabric's end of a worker, as the copy engine needs it.
#pragma once

#include "fabric/core/data_plane.h"
#include "fabric/shm/endpoint.h"

namespace luwu::fabric {

class EndpointPlane final : public DataPlane {
  public:
    explicit EndpointPlane(Endpoint& endpoint) : endpoint_(endpoint) {}

    Handle pull(std::uint32_t block, bool alone) override { return endpoint_.pull(block, alone); }
    void release(std::uint32_t block) override { endpoint_.release(block); }
    Handle push(std::uint32_t block, std::uint64_t arena_offset) override {
        return endpoint_.push(block, arena_offset);
    }
    std::optional<std::int64_t> wait(Handle handle, std::chrono::milliseconds at_most) override {
        return endpoint_.wait(handle, at_most, false);
    }

    void stood_still(std::uint64_t since_ns) override { endpoint_.count_wait(since_ns, since_ns); }

  private:
    Endpoint& endpoint_;
};

}  // namespace luwu::fabric
