// A Python exception class for each kind of native error: the classes of luwu.errors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "store/error.h"

namespace luwu::bindings {
[[nodiscard]] ErrorKind kind_of(const std::string& class_name);     // of luwu.errors; ServerError for any other
[[nodiscard]] nanobind::object make_exception(const Error& error);  // of the class of its kind, not raised
void bind_errors(nanobind::module_& module);
void bind_fabric(nanobind::module_& module);
void bind_forks(nanobind::module_& module);
void bind_network(nanobind::module_& module);
void bind_device(nanobind::module_& module);
void bind_door(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_planning(nanobind::module_& module);
void bind_probes(nanobind::module_& module);
void bind_schedule(nanobind::module_& module);
void bind_step(nanobind::module_& module);
void bind_recorder(nanobind::module_& module);
void bind_standby(nanobind::module_& module);
void bind_store(nanobind::module_& module);
void bind_udp(nanobind::module_& module);
void bind_udp_training(nanobind::module_& module);
}  // namespace luwu::bindings
