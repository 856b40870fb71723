// The native parts that only tests and benchmarks call from Python: luwu._native_testing, in editable installations
// alone.
#pragma once

#include <nanobind/nanobind.h>

namespace luwu::bench {

void bind_fabric(nanobind::module_& module);   // servers without a store, and ports that wait
void bind_kernels(nanobind::module_& module);  // the kernels one by one
void bind_step(nanobind::module_& module);     // the step machine without its executor

}  // namespace luwu::bench
