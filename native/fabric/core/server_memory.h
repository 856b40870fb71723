// The memory that workers' pulls come from, and the bytes that a block takes on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fabric/core/shared_memory.h"
#include "kernels/dtype.h"
#include "schedule/residency.h"
#include "store/layout.h"

namespace luwu::fabric {

class ServerMemory {
  public:
    // `gradient_dtype`: of all blocks' gradients; none: each block's own. `layout` must stay as long as this object.
    ServerMemory(const store::Layout& layout, const schedule::ResidencyPlan& plan,
                 std::optional<kernels::Dtype> gradient_dtype);

    [[nodiscard]] const schedule::ResidencyPlan& plan() const { return plan_; }
    [[nodiscard]] std::byte* window() const { return mapping_.data(); }
    [[nodiscard]] int descriptor() const { return file_.descriptor(); }  // of the window
    // Bytes of a whole block, without padding.
    [[nodiscard]] std::uint64_t parameter_bytes(std::uint32_t block) const;
    [[nodiscard]] std::uint64_t gradient_bytes(std::uint32_t block) const;

  private:
    const store::Layout& layout_;
    schedule::ResidencyPlan plan_;
    std::optional<kernels::Dtype> gradient_dtype_;
    MemoryFile file_;
    Mapping mapping_;
};

}  // namespace luwu::fabric
