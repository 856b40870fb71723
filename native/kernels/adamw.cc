#include "kernels/adamw.h"

namespace luwu::kernels {

constinit const Optimizer adamw = make_optimizer<AdamW>("adamw", 0, 5, kTwoFloats);

}  // namespace luwu::kernels
