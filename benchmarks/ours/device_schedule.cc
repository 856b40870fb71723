// The schedule of copies and compute on a simulated GPU whose clock runs: how long a step takes, with the copy engine
// and in the order of before it. Prints one JSON object with times in the GPU's seconds.
//
// usage: luwu_device_schedule BLOCKS BLOCK_BYTES FORWARD_SECONDS BYTES_PER_SECOND UPDATE_SECONDS SPEED STEPS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "device_rig.h"

namespace {

using namespace luwu;
using Clock = std::chrono::steady_clock;

struct Settings {
    test::JobShape shape;
    TwinSettings twin;
    int steps;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Measured {
    double step_seconds;
    double wait_seconds;  // the caller stood still
};

Measured with_engine(const Settings& settings) {
    test::DeviceJob job(settings.shape, settings.twin);
    job.run_step();  // first, buffers are allocated
    job.synchronise();
    const double waited = static_cast<double>(job.engine().stats().wait_nanoseconds);
    const auto begin = Clock::now();
    for (int step = 0; step < settings.steps; ++step) job.run_step();
    job.synchronise();
    const double scale = settings.twin.seconds_per_second / settings.steps;
    return {seconds_since(begin) * scale,
            (static_cast<double>(job.engine().stats().wait_nanoseconds) - waited) * 1e-9 * scale};
}

// The order before: one stream for both directions, a copy of a block when it is needed, a buffer for each of two
// blocks, and a wait for a gradient's copy before its push.
class OrderOfBefore {
  public:
    explicit OrderOfBefore(const Settings& settings) : settings_(settings) {
        twin_reset(&settings_.twin);
        driver_ = std::make_shared<device::Driver>(LUWU_TWIN_LIBRARY);
        device_ = std::make_unique<device::Device>(driver_, 0);
        host_ = store::AlignedBuffer(bytes());
        pinned_ = std::make_unique<device::PinnedMemory>(*device_, std::span{host_.data(), host_.bytes()});
        copies_ = std::make_unique<device::OwnStream>(*device_);
        compute_ = std::make_unique<device::OwnStream>(*device_);
        for (int i = 0; i < 2; ++i) buffers_.push_back(std::make_unique<Buffer>(*device_, bytes()));
        gradient_ = std::make_unique<device::DeviceMemory>(*device_, bytes());
    }

    double step_seconds() {
        const auto begin = Clock::now();
        for (int step = 0; step < settings_.steps; ++step) run_step();
        wait_for(compute_->get());
        return seconds_since(begin) * settings_.twin.seconds_per_second / settings_.steps;
    }

  private:
    struct Buffer {
        Buffer(const device::Device& device, std::uint64_t bytes)
            : memory(device, bytes), filled(device), read(device) {}
        device::DeviceMemory memory;
        device::Mark filled;
        device::Mark read;
    };

    [[nodiscard]] std::uint64_t bytes() const { return settings_.shape.block_bytes.front(); }

    void run_step() {
        const std::size_t blocks = settings_.shape.block_bytes.size();
        for (std::size_t position = 0; position < 2 * blocks; ++position) {
            Buffer& buffer = *buffers_[position % 2];
            const bool backward = position >= blocks;
            buffer.read.hold_back(copies_->get());
            copy(buffer.memory.address(), true);
            buffer.filled.record(copies_->get());
            buffer.filled.hold_back(compute_->get());
            launch(settings_.shape.forward_seconds * (backward ? 3 : 1));
            buffer.read.record(compute_->get());
            if (backward) {
                buffer.read.hold_back(copies_->get());
                copy(gradient_->address(), false);
                wait_for(copies_->get());
            }
            buffer.filled.wait();  // the window's place is given back
        }
    }

    void copy(device::Address device, bool to_device) {
        const device::Functions& functions = driver_->functions();
        driver_->check(to_device ? functions.copy_to_device(device, host_.data(), bytes(), copies_->get())
                                 : functions.copy_to_host(host_.data(), device, bytes(), copies_->get()),
                       "copy");
    }

    void launch(double seconds) { twin_launch(compute_->get(), nullptr, nullptr, nullptr, 0, seconds); }

    void wait_for(device::Stream stream) {
        const device::Mark end(*device_);
        end.record(stream);
        end.wait();
    }

    Settings settings_;
    std::shared_ptr<const device::Driver> driver_;
    std::unique_ptr<device::Device> device_;
    store::AlignedBuffer host_;
    std::unique_ptr<device::PinnedMemory> pinned_;
    std::unique_ptr<device::OwnStream> copies_;
    std::unique_ptr<device::OwnStream> compute_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::unique_ptr<device::DeviceMemory> gradient_;
};

Settings parsed(char** arguments) {
    Settings settings;
    settings.shape.block_bytes.assign(std::strtoul(arguments[1], nullptr, 10),
                                      std::strtoull(arguments[2], nullptr, 10));
    settings.shape.forward_seconds = std::strtod(arguments[3], nullptr);
    settings.shape.update_seconds = std::strtod(arguments[5], nullptr);
    settings.shape.window_places = 3;
    settings.shape.arena_bytes = 2 * settings.shape.block_bytes.front();
    settings.twin = {1, 0, std::strtod(arguments[4], nullptr), std::strtod(arguments[6], nullptr)};
    settings.steps = std::atoi(arguments[7]);
    return settings;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 8) {
        std::fprintf(stderr, "expected 7 arguments: see %s's first lines\n", __FILE__);
        return 2;
    }
    try {
        const Settings settings = parsed(arguments);
        const Measured ours = with_engine(settings);
        const double before = OrderOfBefore(settings).step_seconds();
        std::printf("{\"step_seconds\": %.6f, \"wait_seconds\": %.6f, \"before_seconds\": %.6f}\n", ours.step_seconds,
                    ours.wait_seconds, before);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
