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
