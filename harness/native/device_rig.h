// A server, a worker's loop and a device for tests of the copy engine: the server is a thread that answers late, and
// the device is the twin.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/engine.h"
#include "store/aligned_buffer.h"
#include "twin/paced.h"
#include "twin/twin.h"

namespace luwu::test {

struct JobShape {
    std::vector<std::uint64_t> block_bytes;
    std::uint32_t window_places = 2;  // each as large as the largest block
    std::uint64_t arena_bytes = 0;
    std::uint32_t depth = 3;
    std::uint32_t ahead = 1;     // blocks that are asked for before they are needed
    double forward_seconds = 0;  // of a block, on a clocked twin; a backward takes three times that
    double update_seconds = 0;   // of a block, which a clocked server takes before it answers a push
};

// Bytes that every block, step and use has others of.
[[nodiscard]] std::uint8_t value_of(std::uint32_t block, std::uint32_t step, bool gradient);

// The server: pulls land and pushes are answered in the order of their direction, after delays.
class ServerTwin final : public fabric::DataPlane {
  public:
    ServerTwin(JobShape shape, std::uint64_t seed, double seconds_per_second);
    ~ServerTwin() override;

    Handle pull(std::uint32_t block, bool alone) override;
    void release(std::uint32_t block) override;
    Handle push(std::uint32_t block, std::uint64_t arena_offset) override;
    std::optional<std::int64_t> wait(Handle handle, std::chrono::milliseconds at_most) override;

    void stood_still(std::uint64_t) override {}

    void end_step();                   // waits for all pushes; the next step's values are others
    void stall() { stalled_ = true; }  // nothing is answered any more
    void go_on();
    void fail();  // every wait throws from now on
    [[nodiscard]] std::span<std::byte> window() { return {window_.data(), window_.bytes()}; }
    [[nodiscard]] std::span<std::byte> arena() { return {arena_.data(), shape_.arena_bytes}; }
    [[nodiscard]] std::vector<std::string> wrong() const;
    [[nodiscard]] std::uint32_t held() const;  // places in the window that are taken

  private:
    struct Request {
        Handle handle;
        std::uint32_t block;
        std::uint64_t offset;  // of a push
    };
    void serve_pulls();
    void serve_pushes();
    void late(std::mt19937_64& random) const;
    void answer(Handle handle, std::int64_t result);

    JobShape shape_;
    std::uint64_t seed_;
    bool clocked_;
    twin::Paced updates_;
    store::AlignedBuffer window_;
    store::AlignedBuffer arena_;
    std::uint64_t place_bytes_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Request> pulls_;
    std::deque<Request> pushes_;
    std::map<Handle, std::int64_t> answers_;
    std::map<std::uint32_t, std::pair<std::uint32_t, std::uint32_t>> places_;  // by block: which, and held how often
    std::set<std::uint32_t> free_places_;
    std::set<std::uint32_t> pushed_;  // in this step
    std::vector<std::string> wrong_;
    Handle next_handle_ = 1;
    std::uint32_t step_ = 0;
    std::atomic<bool> stalled_{false};
    bool failed_ = false;
    bool ending_ = false;
    std::thread pull_thread_;
    std::thread push_thread_;
};

// Runs steps as a worker does: each block forward, then each block backward, with kernels that check what they read.
class DeviceJob {
  public:
    DeviceJob(const JobShape& shape, const TwinSettings& settings, std::function<void()> make_room = {});
    ~DeviceJob();
    DeviceJob(const DeviceJob&) = delete;
    DeviceJob& operator=(const DeviceJob&) = delete;

    void run_step();
    [[nodiscard]] device::CopyEngine& engine() { return *engine_; }
    [[nodiscard]] ServerTwin& server() { return *server_; }
    [[nodiscard]] device::Stream compute() const { return compute_; }
    // Errors that kernels and the server met, and the twin's findings.
    [[nodiscard]] std::vector<std::string> wrong() const;
    void synchronise() const;  // waits for the compute stream
    void end_engine();

  private:
    struct Kernel;
    void forward(std::uint32_t block);
    void backward(std::uint32_t block);
    void ask(const std::vector<std::uint32_t>& order, std::size_t position);
    void launch(std::uint32_t block, device::Address parameters, device::Address gradient);

    JobShape shape_;
    std::shared_ptr<const device::Driver> driver_;
    std::unique_ptr<device::Device> device_;
    std::unique_ptr<ServerTwin> server_;
    std::unique_ptr<device::CopyEngine> engine_;
    device::Stream compute_ = nullptr;
    std::uint32_t step_ = 0;
    std::set<std::uint32_t> asked_;
    mutable std::mutex mutex_;
    std::vector<std::string> wrong_;
};

// Calls until it returns something.
template <class Call>
auto until_there(Call call) {
    while (true) {
        if (auto found = call(std::chrono::milliseconds(100))) return found;
    }
}

inline void request(device::CopyEngine& engine, std::uint32_t block, bool alone) {
    until_there([&](auto at_most) { return engine.request(block, alone, at_most); });
}

}  // namespace luwu::test
