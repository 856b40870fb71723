#include "device/device.h"

#include <array>

#include "device/host_memory.h"

namespace luwu::device {

namespace {

constexpr unsigned kStreamNonBlocking = 1;  // does not wait for the default stream
constexpr unsigned kEventBlockingSync = 1;  // a thread that waits sleeps
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kRegisterPortable = 1;  // for every context of the process
constexpr int kBusIdBytes = 32;            // CUDA asks for 13 at least

}  // namespace

Device::Device(std::shared_ptr<const Driver> driver, int ordinal) : driver_(std::move(driver)), ordinal_(ordinal) {
    const std::string name = "device " + std::to_string(ordinal);
    check(functions().device_get(&device_, ordinal), "find " + name);
    std::array<char, kBusIdBytes> bus_id{};
    if (functions().device_bus_id(bus_id.data(), kBusIdBytes, device_) == 0) numa_node_ = numa_node_of(bus_id.data());
    check(functions().context_retain(&context_, device_), "open " + name);
}

void Device::give_back(const std::function<void(const Functions&)>& call) const {
    Context before = nullptr;
    const bool chosen = functions().context_push(context_) == 0;
    call(functions());
    if (chosen) functions().context_pop(&before);
}

Device::~Device() { functions().context_release(device_); }

Device::Current::Current(const Device& device) : device_(device) {
    device.check(device.functions().context_push(device.context_), "choose device " + std::to_string(device.ordinal_));
}

Device::Current::~Current() {
    Context before = nullptr;
    device_.functions().context_pop(&before);
}

Mark::Mark(const Device& device) : device_(&device) {
    const Device::Current current(device);
    device.check(device.functions().event_create(&event_, kEventBlockingSync | kEventDisableTiming), "make an event");
}

Mark::~Mark() {
    if (event_ != nullptr) device_->give_back([&](const Functions& functions) { functions.event_destroy(event_); });
}

void Mark::record(Stream stream) const {
    device_->check(device_->functions().event_record(event_, stream), "record an event");
}

void Mark::hold_back(Stream stream) const {
    device_->check(device_->functions().stream_wait(stream, event_, 0), "let a stream wait for an event");
}

void Mark::wait() const { device_->check(device_->functions().event_synchronize(event_), "wait for an event"); }

OwnStream::OwnStream(const Device& device) : device_(device) {
    const Device::Current current(device);
    device.check(device.functions().stream_create(&stream_, kStreamNonBlocking), "make a stream");
}

OwnStream::~OwnStream() {
    device_.give_back([&](const Functions& functions) { functions.stream_destroy(stream_); });
}

DeviceMemory::DeviceMemory(const Device& device, std::uint64_t bytes, const std::string& beside) : device_(&device) {
    const Device::Current current(device);
    device.check(device.functions().memory_allocate(&address_, bytes),
                 "allocate " + std::to_string(bytes) + " bytes of the device's memory" + beside);
}

DeviceMemory::~DeviceMemory() {
    if (address_ != 0) device_->give_back([&](const Functions& functions) { functions.memory_free(address_); });
}

PinnedMemory::PinnedMemory(const Device& device, std::span<std::byte> memory) : device_(device), memory_(memory) {
    if (memory_.empty()) return;
    const Device::Current current(device);
    place_near(memory, device.numa_node());
    device.check(device.functions().host_register(memory.data(), memory.size(), kRegisterPortable),
                 "lock " + std::to_string(memory.size()) +
                     " bytes of host memory in place (raise the limit of locked memory, ulimit -l, or lower the "
                     "server's memory budget)");
}

PinnedMemory::~PinnedMemory() {
    if (memory_.empty()) return;
    device_.give_back([&](const Functions& functions) { functions.host_unregister(memory_.data()); });
}

}  // namespace luwu::device
