// Conversion of a store's shape from Python.
#pragma once

#include <string>
#include <vector>

#include "store/layout.h"
#include "store/records.h"

namespace luwu::bindings {

struct BlockSpec {
    std::string name;
    std::uint64_t elements = 0;
    bool trainable = true;
    bool held = false;
    kernels::Dtype dtype = kernels::Dtype::float32;
    bool whole_master = false;
};

// Shape as a worker knows it: without the store's chunks and states.
[[nodiscard]] store::StoreShape make_shape(const std::vector<BlockSpec>& blocks,
                                           std::uint64_t chunk_elements = store::kChunkStep,
                                           const std::string& optimizer = kernels::adamw.name);
// Returns the block's number, where there is such a block. `owner`: "model" or "store". Throws Error(invalid).
[[nodiscard]] std::uint32_t checked_block(std::uint32_t block, std::size_t blocks, const char* owner = "model");
[[nodiscard]] kernels::Dtype get_dtype(const std::string& name);                 // throws Error(invalid)
[[nodiscard]] const kernels::Optimizer& get_optimizer(const std::string& name);  // throws Error(invalid)
[[nodiscard]] store::Uuid make_uuid(const std::string& bytes);

}  // namespace luwu::bindings
