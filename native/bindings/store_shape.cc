#include "bindings/store_shape.h"

#include "store/error.h"

namespace luwu::bindings {

store::StoreShape make_shape(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements,
                             const std::string& optimizer) {
    store::StoreShape shape;
    shape.chunk_elements = chunk_elements;
    shape.optimizer = &get_optimizer(optimizer);
    for (const BlockSpec& block : blocks) {
        shape.blocks.push_back({block.name, block.elements, block.trainable, block.dtype, block.whole_master});
    }
    return shape;
}

std::uint32_t checked_block(std::uint32_t block, std::size_t blocks, const char* owner) {
    if (block < blocks) return block;
    throw Error(ErrorKind::invalid, std::string("the ") + owner + " has no block " + std::to_string(block));
}

kernels::Dtype get_dtype(const std::string& name) {
    if (name == "float32") return kernels::Dtype::float32;
    if (name == "bfloat16") return kernels::Dtype::bfloat16;
    if (name == "float16") return kernels::Dtype::float16;
    throw Error(ErrorKind::invalid, "dtype is '" + name + "'; expected float32, bfloat16 or float16");
}

const kernels::Optimizer& get_optimizer(const std::string& name) {
    if (const kernels::Optimizer* const found = kernels::find_optimizer(name)) return *found;
    std::string known;
    for (const kernels::Optimizer* const optimizer : kernels::kOptimizers) {
        known += (known.empty() ? "" : ", ") + std::string(optimizer->name);
    }
    throw Error(ErrorKind::invalid, "optimizer is '" + name + "'; expected one of " + known);
}

store::Uuid make_uuid(const std::string& bytes) {
    store::Uuid uuid{};
    if (bytes.size() != 2 * uuid.size()) {
        throw Error(ErrorKind::invalid, "a store's uuid has 32 hexadecimal digits; found '" + bytes + "'");
    }
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        uuid[i] = static_cast<std::uint8_t>(std::stoul(bytes.substr(2 * i, 2), nullptr, 16));
    }
    return uuid;
}

}  // namespace luwu::bindings
