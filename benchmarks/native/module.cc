#include "module.h"

NB_MODULE(_native_testing, module) {
    nanobind::set_leak_warnings(false);
    module.doc() = "Native parts of LuWu that only its tests and benchmarks call.";
    nanobind::module_::import_("luwu._native");  // has the types and errors that this one shares
    luwu::bench::bind_fabric(module);
    luwu::bench::bind_kernels(module);
    luwu::bench::bind_step(module);
}
