#include "device/driver.h"

#include <dlfcn.h>

#include "store/error.h"

namespace luwu::device {

namespace {

template <class Function>
void find(void* handle, const std::string& library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) {
        throw Error(ErrorKind::device, library + ": expected the function " + name +
                                           " of CUDA's driver interface, found none; install a driver for CUDA 11 or "
                                           "newer, or use device='cpu'");
    }
}

}  // namespace

Driver::Driver(const std::string& library) : library_(library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* reason = dlerror();
        throw Error(ErrorKind::device,
                    "the GPU's driver cannot be loaded: " + std::string(reason == nullptr ? library : reason) +
                        "; install NVIDIA's driver, or use device='cpu'");
    }
    Functions& f = functions_;
    find(handle, library, "cuInit", f.init);
    find(handle, library, "cuDeviceGet", f.device_get);
    find(handle, library, "cuDeviceGetPCIBusId", f.device_bus_id);
    find(handle, library, "cuDevicePrimaryCtxRetain", f.context_retain);
    find(handle, library, "cuDevicePrimaryCtxRelease_v2", f.context_release);
    find(handle, library, "cuCtxPushCurrent_v2", f.context_push);
    find(handle, library, "cuCtxPopCurrent_v2", f.context_pop);
    find(handle, library, "cuMemHostRegister_v2", f.host_register);
    find(handle, library, "cuMemHostUnregister", f.host_unregister);
    find(handle, library, "cuMemAlloc_v2", f.memory_allocate);
    find(handle, library, "cuMemFree_v2", f.memory_free);
    find(handle, library, "cuMemcpyHtoDAsync_v2", f.copy_to_device);
    find(handle, library, "cuMemcpyDtoHAsync_v2", f.copy_to_host);
    find(handle, library, "cuStreamCreate", f.stream_create);
    find(handle, library, "cuStreamDestroy_v2", f.stream_destroy);
    find(handle, library, "cuStreamWaitEvent", f.stream_wait);
    find(handle, library, "cuLaunchHostFunc", f.stream_call);
    find(handle, library, "cuEventCreate", f.event_create);
    find(handle, library, "cuEventRecord", f.event_record);
    find(handle, library, "cuEventSynchronize", f.event_synchronize);
    find(handle, library, "cuEventDestroy_v2", f.event_destroy);
    find(handle, library, "cuGetErrorName", f.error_name);
    find(handle, library, "cuGetErrorString", f.error_text);
    check(f.init(0), "start the GPU's driver");
}

void Driver::check(Status status, const std::string& doing) const {
    if (status == 0) return;
    throw Error(ErrorKind::device, "the GPU's driver could not " + doing + ": " + text_of(status));
}

std::string Driver::text_of(Status status) const {
    const char* name = nullptr;
    const char* text = nullptr;
    std::string found = "error " + std::to_string(status);
    if (functions_.error_name(status, &name) == 0 && name != nullptr) found += " (" + std::string(name) + ")";
    if (functions_.error_text(status, &text) == 0 && text != nullptr) found += ", " + std::string(text);
    return found;
}

}  // namespace luwu::device
