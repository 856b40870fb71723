// The functions that the twin offers under the names of CUDA's driver interface, and its own.
#include <sys/mman.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twin/memory.h"
#include "twin/streams.h"
#include "twin/twin.h"

namespace {

using namespace luwu::twin;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr std::size_t kPage = 4096;

struct EventTwin {
    std::shared_ptr<Record> last;
};

struct Failure {
    int after;
    int status;
};

struct Twin {
    explicit Twin(const TwinSettings& settings) : memory(settings.seconds_per_second > 0) {
        world.settings = settings;
        inlined = std::make_unique<StreamTwin>(world, next_actor++, true);
    }
    World world;
    Memory memory;
    Actor next_actor = kFirstStream;
    std::unique_ptr<StreamTwin> inlined;
    std::map<StreamTwin*, std::unique_ptr<StreamTwin>> streams;
    std::map<EventTwin*, std::unique_ptr<EventTwin>> events;
    std::map<std::string, Failure> failures;
};

std::unique_ptr<Twin>& the_twin() {
    static std::unique_ptr<Twin> twin = std::make_unique<Twin>(TwinSettings{0, 0, 0, 0});
    return twin;
}

StreamTwin& stream_of(void* stream) {
    return stream == nullptr ? *the_twin()->inlined : *static_cast<StreamTwin*>(stream);
}

std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// With the lock: the status that the function is to return, success unless it was told to fail.
int status_of(const char* function) {
    auto& failures = the_twin()->failures;
    const auto found = failures.find(function);
    if (found == failures.end() || found->second.after-- > 0) return kSuccess;
    const int status = found->second.status;
    failures.erase(found);
    return status;
}

int checked(const char* function) {
    const std::lock_guard lock(the_twin()->world.mutex);
    return status_of(function);
}

void copy(StreamTwin& stream, bool to_device, std::uint64_t device, std::byte* host, std::size_t bytes) {
    Twin& twin = *the_twin();
    const std::string what = to_device ? "a copy to the device" : "a copy from the device";
    {
        const std::lock_guard lock(twin.world.mutex);
        if (!twin.memory.is_registered(host, bytes))
            twin.world.checker.find(what + " of memory that is not registered");
        if (!twin.memory.is_allocated(device, bytes))
            twin.world.checker.find(what + " of memory that is not allocated");
        stream.access(address_of(host), bytes, !to_device, what);
        stream.access(device, bytes, to_device, what);
        if (!twin.memory.is_registered(host, bytes) || !twin.memory.is_allocated(device, bytes)) return;
        if (to_device) {
            twin.memory.to_device(device, host, bytes);
        } else {
            twin.memory.to_host(host, device, bytes);
        }
    }
    if (twin.world.settings.bytes_per_second > 0) {
        stream.spend(static_cast<double>(bytes) / twin.world.settings.bytes_per_second);
    }
}

}  // namespace

TWIN_EXPORT int cuInit(unsigned) { return checked("cuInit"); }

TWIN_EXPORT int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? checked("cuDeviceGet") : kInvalidValue;
}

TWIN_EXPORT int cuDeviceGetPCIBusId(char*, int, int) { return kInvalidValue; }  // it is on no bus

TWIN_EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = the_twin().get();
    return kSuccess;
}
TWIN_EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
TWIN_EXPORT int cuCtxPushCurrent_v2(void*) { return kSuccess; }
TWIN_EXPORT int cuCtxPopCurrent_v2(void**) { return kSuccess; }

TWIN_EXPORT int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    if (const int status = status_of("cuMemHostRegister_v2"); status != kSuccess) return status;
    return twin.memory.add(static_cast<std::byte*>(memory), bytes) ? kSuccess : kAlreadyRegistered;
}

TWIN_EXPORT int cuMemHostUnregister(void* memory) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    const std::size_t bytes = twin.memory.registered_at(static_cast<std::byte*>(memory));
    if (!twin.memory.remove(static_cast<std::byte*>(memory))) return kNotRegistered;
    const std::uintptr_t first = address_of(memory) / kPage * kPage;
    std::vector<unsigned char> pages((address_of(memory) + bytes - first + kPage - 1) / kPage);
    if (mincore(reinterpret_cast<void*>(first), pages.size() * kPage, pages.data()) != 0) {
        twin.world.checker.find("the end of a registration of memory that is not mapped any more");
    }
    // Copies must have ended. The server may go on: it does not need the registration.
    const std::uintptr_t end = address_of(memory) + bytes;
    twin.world.checker.forget_of(kServer, address_of(memory), end);
    twin.world.checker.access(kCaller, twin.world.caller,
                              {address_of(memory), end, true, "the end of a registration of memory"});
    twin.world.checker.forget(address_of(memory), end);
    return kSuccess;
}

TWIN_EXPORT int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    if (const int status = status_of("cuMemAlloc_v2"); status != kSuccess) return status;
    *address = twin.memory.allocate(bytes);
    return kSuccess;
}

TWIN_EXPORT int cuMemFree_v2(std::uint64_t address) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    const std::size_t bytes = twin.memory.allocated_at(address);
    if (!twin.memory.free(address)) return kInvalidValue;
    twin.world.checker.forget(address, address + bytes);  // the driver waits for the device before it frees
    return kSuccess;
}

TWIN_EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
    if (const int status = checked("cuMemcpyHtoDAsync_v2"); status != kSuccess) return status;
    auto* host = static_cast<std::byte*>(const_cast<void*>(from));
    stream_of(stream).enqueue([=](StreamTwin& own) { copy(own, true, to, host, bytes); });
    return kSuccess;
}

TWIN_EXPORT int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
    if (const int status = checked("cuMemcpyDtoHAsync_v2"); status != kSuccess) return status;
    auto* host = static_cast<std::byte*>(to);
    stream_of(stream).enqueue([=](StreamTwin& own) { copy(own, false, from, host, bytes); });
    return kSuccess;
}

TWIN_EXPORT int cuStreamCreate(void** stream, unsigned) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    auto made = std::make_unique<StreamTwin>(twin.world, twin.next_actor++, false);
    *stream = made.get();
    twin.streams[made.get()] = std::move(made);
    return kSuccess;
}

TWIN_EXPORT int cuStreamDestroy_v2(void* stream) {
    Twin& twin = *the_twin();
    std::unique_ptr<StreamTwin> gone;  // its thread ends without the lock
    const std::lock_guard lock(twin.world.mutex);
    const auto found = twin.streams.find(static_cast<StreamTwin*>(stream));
    if (found == twin.streams.end()) return kInvalidValue;
    gone = std::move(found->second);
    twin.streams.erase(found);
    twin.world.mutex.unlock();
    gone.reset();
    twin.world.mutex.lock();
    return kSuccess;
}

TWIN_EXPORT int cuEventCreate(void** event, unsigned) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    auto made = std::make_unique<EventTwin>();
    *event = made.get();
    twin.events[made.get()] = std::move(made);
    return kSuccess;
}

TWIN_EXPORT int cuEventDestroy_v2(void* event) {
    Twin& twin = *the_twin();
    const std::lock_guard lock(twin.world.mutex);
    return twin.events.erase(static_cast<EventTwin*>(event)) == 1 ? kSuccess : kInvalidValue;
}

TWIN_EXPORT int cuEventRecord(void* event, void* stream) {
    Twin& twin = *the_twin();
    auto record = std::make_shared<Record>();
    {
        const std::lock_guard lock(twin.world.mutex);
        static_cast<EventTwin*>(event)->last = record;
    }
    stream_of(stream).enqueue([&twin, record](StreamTwin& own) {
        const std::lock_guard lock(twin.world.mutex);
        record->clock = own.clock();
        record->done = true;
        twin.world.changed.notify_all();
    });
    return kSuccess;
}

TWIN_EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    Twin& twin = *the_twin();
    std::shared_ptr<Record> record;
    {
        const std::lock_guard lock(twin.world.mutex);
        record = static_cast<EventTwin*>(event)->last;
    }
    if (record == nullptr) return kSuccess;
    stream_of(stream).enqueue([&twin, record](StreamTwin& own) {
        std::unique_lock lock(twin.world.mutex);
        twin.world.changed.wait(lock, [&] { return record->done; });
        own.clock().join(record->clock);
    });
    return kSuccess;
}

TWIN_EXPORT int cuEventSynchronize(void* event) {
    Twin& twin = *the_twin();
    std::unique_lock lock(twin.world.mutex);
    const std::shared_ptr<Record> record = static_cast<EventTwin*>(event)->last;
    if (record == nullptr) return kSuccess;
    twin.world.changed.wait(lock, [&] { return record->done; });
    clock_of_this_thread(twin.world).join(record->clock);
    return kSuccess;
}

TWIN_EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
    if (const int status = checked("cuLaunchHostFunc"); status != kSuccess) return status;
    stream_of(stream).enqueue([=](StreamTwin& own) {
        set_clock_of_this_thread(&own.clock());
        function(argument);
        set_clock_of_this_thread(nullptr);
    });
    return kSuccess;
}

TWIN_EXPORT int cuGetErrorName(int status, const char** name) {
    *name = status == kSuccess ? "CUDA_SUCCESS" : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return kSuccess;
}

TWIN_EXPORT int cuGetErrorString(int status, const char** text) {
    *text = status == 2 ? "out of memory" : "the twin was told to fail, or an argument is wrong";
    return kSuccess;
}

void twin_reset(const TwinSettings* settings) {
    std::unique_ptr<Twin>& twin = the_twin();
    twin->streams.clear();
    twin = std::make_unique<Twin>(*settings);
}

void twin_delay(std::uint32_t most_microseconds) {
    World& world = the_twin()->world;
    const std::lock_guard lock(world.mutex);
    world.settings.most_delay_microseconds = most_microseconds;
}

void twin_launch(void* stream, void (*function)(void*), void* argument, const TwinAccess* accesses, std::size_t count,
                 double seconds) {
    Twin& twin = *the_twin();
    stream_of(stream).enqueue([&twin, function, argument, seconds,
                               all = std::vector<TwinAccess>(accesses, accesses + count)](StreamTwin& own) {
        {
            const std::lock_guard lock(twin.world.mutex);
            for (const TwinAccess& access : all) {
                own.access(address_of(access.memory), access.bytes, access.writes != 0, access.what);
            }
        }
        own.spend(seconds);
        if (function != nullptr) function(argument);
    });
}

void twin_server_access(const TwinAccess* access) {
    World& world = the_twin()->world;
    const std::lock_guard lock(world.mutex);
    world.server.tick(kServer);
    world.checker.access(
        kServer, world.server,
        {address_of(access->memory), address_of(access->memory) + access->bytes, access->writes != 0, access->what});
}

void twin_server_sees_caller() {
    World& world = the_twin()->world;
    const std::lock_guard lock(world.mutex);
    world.server.join(clock_of_this_thread(world));
}

void twin_caller_sees_server() {
    World& world = the_twin()->world;
    const std::lock_guard lock(world.mutex);
    clock_of_this_thread(world).join(world.server);
}

void twin_fail(const char* function, int after, int status) {
    const std::lock_guard lock(the_twin()->world.mutex);
    the_twin()->failures[function] = {after, status};
}

std::size_t twin_findings() {
    const std::lock_guard lock(the_twin()->world.mutex);
    return the_twin()->world.checker.findings().size();
}

const char* twin_finding(std::size_t index) {
    const std::lock_guard lock(the_twin()->world.mutex);
    return the_twin()->world.checker.findings().at(index).c_str();
}

void twin_forget_findings() {
    const std::lock_guard lock(the_twin()->world.mutex);
    the_twin()->world.checker.forget_findings();
}

std::size_t twin_registered_bytes() {
    const std::lock_guard lock(the_twin()->world.mutex);
    return the_twin()->memory.registered_bytes();
}

std::size_t twin_device_bytes() {
    const std::lock_guard lock(the_twin()->world.mutex);
    return the_twin()->memory.device_bytes();
}

std::size_t twin_most_device_bytes() {
    const std::lock_guard lock(the_twin()->world.mutex);
    return the_twin()->memory.most_device_bytes();
}
