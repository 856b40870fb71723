#include "fabric/core/server_memory.h"

namespace luwu::fabric {

ServerMemory::ServerMemory(const store::Layout& layout, const schedule::ResidencyPlan& plan,
                           std::optional<kernels::Dtype> gradient_dtype)
    : layout_(layout),
      plan_(plan),
      gradient_dtype_(gradient_dtype),
      file_("luwu-window", plan_.window_bytes),
      mapping_(file_.descriptor(), MapMode::shared) {}

std::uint64_t ServerMemory::parameter_bytes(std::uint32_t block) const { return layout_.shape().blocks[block].bytes(); }

std::uint64_t ServerMemory::gradient_bytes(std::uint32_t block) const {
    const kernels::Dtype dtype = gradient_dtype_.value_or(layout_.dtype(block));
    return layout_.shape().blocks[block].elements * kernels::size_of(dtype);
}

}  // namespace luwu::fabric
