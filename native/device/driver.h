// The functions of a GPU's driver in a table, which the rest of this room calls. CUDA's are found in libcuda when they
// are first needed, so that CUDA is not needed at build time; any library with the same functions will do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace luwu::device {

using Status = int;                  // 0: success
using Address = std::uint64_t;       // in a device's memory
using Stream = struct StreamTag*;    // null: the default stream
using Event = struct EventTag*;      //
using Context = struct ContextTag*;  //
using HostFunction = void (*)(void*);

// The names are those of CUDA's driver interface in words.
struct Functions {
    Status (*init)(unsigned flags);
    Status (*device_get)(int* device, int ordinal);
    Status (*device_bus_id)(char* id, int bytes, int device);
    Status (*context_retain)(Context* context, int device);
    Status (*context_release)(int device);
    Status (*context_push)(Context context);
    Status (*context_pop)(Context* context);
    Status (*host_register)(void* memory, std::size_t bytes, unsigned flags);
    Status (*host_unregister)(void* memory);
    Status (*memory_allocate)(Address* memory, std::size_t bytes);
    Status (*memory_free)(Address memory);
    Status (*copy_to_device)(Address to, const void* from, std::size_t bytes, Stream stream);
    Status (*copy_to_host)(void* to, Address from, std::size_t bytes, Stream stream);
    Status (*stream_create)(Stream* stream, unsigned flags);
    Status (*stream_destroy)(Stream stream);
    Status (*stream_wait)(Stream stream, Event event, unsigned flags);
    Status (*stream_call)(Stream stream, HostFunction function, void* argument);
    Status (*event_create)(Event* event, unsigned flags);
    Status (*event_record)(Event event, Stream stream);
    Status (*event_synchronize)(Event event);
    Status (*event_destroy)(Event event);
    Status (*error_name)(Status status, const char** name);
    Status (*error_text)(Status status, const char** text);
};

// A driver library that is loaded for the rest of the process's life, as CUDA's does not bear being unloaded.
class Driver {
  public:
    // Throws Error(device): the library cannot be loaded, lacks a function, or finds no device that works.
    explicit Driver(const std::string& library = "libcuda.so.1");

    [[nodiscard]] const Functions& functions() const { return functions_; }
    // Throws Error(device) unless the status is success; `doing` begins the message: "copy 4096 bytes to the device".
    void check(Status status, const std::string& doing) const;
    [[nodiscard]] std::string text_of(Status status) const;

  private:
    std::string library_;
    Functions functions_{};
};

}  // namespace luwu::device
