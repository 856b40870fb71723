#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);  // objects alive at the end of the interpreter are not worth a line to its user
    module.doc() = "LuWu's native core: kernels, store, pipeline and the fabric.";
    luwu::bindings::bind_errors(module);
    luwu::bindings::bind_kernels(module);
    luwu::bindings::bind_store(module);
    luwu::bindings::bind_planning(module);
    luwu::bindings::bind_probes(module);
    luwu::bindings::bind_schedule(module);
    luwu::bindings::bind_step(module);
    luwu::bindings::bind_recorder(module);
    luwu::bindings::bind_fabric(module);
    luwu::bindings::bind_forks(module);
    luwu::bindings::bind_udp(module);
    luwu::bindings::bind_udp_training(module);
    luwu::bindings::bind_network(module);
    luwu::bindings::bind_standby(module);
    luwu::bindings::bind_door(module);
    luwu::bindings::bind_device(module);
}
