#include "bindings/bindings.h"
#include "store/error.h"

namespace nb = nanobind;

namespace luwu::bindings {

namespace {

const char* class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::io:
            return "StoreError";
        case ErrorKind::no_space:
            return "StoreSpaceError";
        case ErrorKind::permission:
            return "StorePermissionError";
        case ErrorKind::locked:
            return "StoreLockedError";
        case ErrorKind::corrupt:
            return "StoreCorruptError";
        case ErrorKind::format:
            return "StoreFormatError";
        case ErrorKind::memory_budget:
            return "MemoryBudgetError";
        case ErrorKind::order:
            return "StepOrderError";
        case ErrorKind::worker_lost:
            return "WorkerLostError";
        case ErrorKind::server:
            return "ServerError";
        case ErrorKind::invalid:
            return "ConfigError";
    }
    return "LuwuError";
}

}  // namespace

void bind_errors(nb::module_&) {
    nb::register_exception_translator(
        [](const std::exception_ptr& pointer, void*) {
            try {
                std::rethrow_exception(pointer);
            } catch (const Error& error) {
                const nb::object type = nb::module_::import_("luwu.errors").attr(class_name(error.kind()));
                PyErr_SetString(type.ptr(), error.what());
            }
        },
        nullptr);
}

}  // namespace luwu::bindings

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);  // objects alive at the end of the interpreter are not worth a line to its user
    module.doc() = "LuWu's native core: kernels, store, pipeline and the shared-memory fabric.";
    luwu::bindings::bind_errors(module);
    luwu::bindings::bind_kernels(module);
    luwu::bindings::bind_store(module);
    luwu::bindings::bind_fabric(module);
    luwu::bindings::bind_udp(module);
}
