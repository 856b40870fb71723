#include "kernels/adamw.h"

namespace luwu::kernels {

namespace {

constexpr std::array kEightBits{StateCode::signed_8bit, StateCode::root_8bit};

}  // namespace

/// AdamW's mathematics on states that are kept in 8 bits by blocks (Dettmers et al., 8-bit Optimizers via Block-wise
/// Quantization, 2022, arXiv 2110.02861).
constinit const Optimizer adamw_8bit = make_optimizer<AdamW>("adamw8bit", 5, 5, kEightBits);

}  // namespace luwu::kernels
