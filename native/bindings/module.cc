#include <array>
#include <utility>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace luwu::bindings {

namespace {

constexpr auto kClassNames = std::to_array<std::pair<ErrorKind, const char*>>({
    {ErrorKind::io, "StoreError"},
    {ErrorKind::no_space, "StoreSpaceError"},
    {ErrorKind::permission, "StorePermissionError"},
    {ErrorKind::locked, "StoreLockedError"},
    {ErrorKind::corrupt, "StoreCorruptError"},
    {ErrorKind::format, "StoreFormatError"},
    {ErrorKind::memory_budget, "MemoryBudgetError"},
    {ErrorKind::order, "StepOrderError"},
    {ErrorKind::worker_lost, "WorkerLostError"},
    {ErrorKind::server, "ServerError"},
    {ErrorKind::invalid, "ConfigError"},
    {ErrorKind::empty, "StoreEmptyError"},
    {ErrorKind::forked, "ForkedError"},
    {ErrorKind::device, "DeviceError"},
});
static_assert(kClassNames.size() == static_cast<std::size_t>(kLastErrorKind) + 1, "each kind has a class");

nb::object class_of(ErrorKind kind) {
    const char* class_name = "LuwuError";
    for (const auto& [known, name] : kClassNames) {
        if (known == kind) class_name = name;
    }
    return nb::module_::import_("luwu.errors").attr(class_name);
}

}  // namespace

ErrorKind kind_of(const std::string& class_name) {
    for (const auto& [kind, name] : kClassNames) {
        if (class_name == name) return kind;
    }
    return ErrorKind::server;
}

nb::object make_exception(const Error& error) { return class_of(error.kind())(error.what()); }

void bind_errors(nb::module_&) {
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void*) {
            try {
                std::rethrow_exception(pointer);
            } catch (const Error& error) {
                PyErr_SetString(class_of(error.kind()).ptr(), error.what());
            }
        },
        nullptr);
}

}  // namespace luwu::bindings

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
    luwu::bindings::bind_door(module);
    luwu::bindings::bind_device(module);
}
