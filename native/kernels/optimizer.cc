#include "kernels/optimizer.h"

namespace luwu::kernels {

std::span<const Optimizer* const> optimizers() {
    static constexpr std::array all{&adamw, &adam, &sgd, &lion, &adagrad, &adamw_8bit};
    return all;
}

const Optimizer* find_optimizer(std::string_view name) {
    for (const Optimizer* const optimizer : optimizers()) {
        if (name == optimizer->name) return optimizer;
    }
    return nullptr;
}

}  // namespace luwu::kernels
