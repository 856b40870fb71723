#include "kernels/optimizer.h"

namespace luwu::kernels {

const Optimizer* find_optimizer(std::string_view name) {
    for (const Optimizer* const optimizer : kOptimizers) {
        if (name == optimizer->name) return optimizer;
    }
    return nullptr;
}

}  // namespace luwu::kernels
