// A device and the objects made on it: each is given back when its owner goes. Functions throw Error(device).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "device/driver.h"

namespace luwu::device {

// A device's primary context, which the program's other users of the device (torch) share.
class Device {
  public:
    Device(std::shared_ptr<const Driver> driver, int ordinal);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    [[nodiscard]] const Driver& driver() const { return *driver_; }
    [[nodiscard]] const Functions& functions() const { return driver_->functions(); }
    [[nodiscard]] std::optional<int> numa_node() const { return numa_node_; }
    void check(Status status, const std::string& doing) const { driver_->check(status, doing); }

    // Calls, on this device, what gives something back. It is not checked: a process that exits may have lost its
    // driver.
    void give_back(const std::function<void(const Functions&)>& call) const;

    // Makes the device that of the calling thread while it lives.
    class Current {
      public:
        explicit Current(const Device& device);
        ~Current();
        Current(const Current&) = delete;
        Current& operator=(const Current&) = delete;

      private:
        const Device& device_;
    };

  private:
    std::shared_ptr<const Driver> driver_;
    int ordinal_;
    int device_ = 0;
    Context context_ = nullptr;
    std::optional<int> numa_node_;
};

// A point in a stream's work, for other streams to wait for. A thread that waits for it sleeps.
class Mark {
  public:
    explicit Mark(const Device& device);
    ~Mark();
    Mark(Mark&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    Mark& operator=(Mark&&) = delete;

    void record(Stream stream) const;     // after the work that the stream has so far
    void hold_back(Stream stream) const;  // the stream's later work waits for the last record; nothing if none
    void wait() const;                    // this thread does

  private:
    const Device* device_;
    Event event_ = nullptr;
};

class OwnStream {
  public:
    explicit OwnStream(const Device& device);
    ~OwnStream();
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    [[nodiscard]] Stream get() const { return stream_; }

  private:
    const Device& device_;
    Stream stream_ = nullptr;
};

class DeviceMemory {
  public:
    DeviceMemory(const Device& device, std::uint64_t bytes, const std::string& beside = "");  // for the error
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&& other) noexcept : device_(other.device_), address_(std::exchange(other.address_, 0)) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    DeviceMemory& operator=(DeviceMemory&&) = delete;
    [[nodiscard]] Address address() const { return address_; }

  private:
    const Device* device_;
    Address address_ = 0;
};

// Host memory whose pages are locked in place, so that the device copies from and to it by itself. Pages that are not
// there yet are taken near the device. The memory must outlive this, and its pages must not be given back to the system
// before.
class PinnedMemory {
  public:
    PinnedMemory(const Device& device, std::span<std::byte> memory);
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    [[nodiscard]] std::uint64_t bytes() const { return memory_.size(); }

  private:
    const Device& device_;
    std::span<std::byte> memory_;
};

}  // namespace luwu::device
