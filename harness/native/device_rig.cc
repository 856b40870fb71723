#if LUWU_HAVE_URING
#include "device_rig.h"

#include <algorithm>

#include "store/error.h"
#include "store/layout.h"

namespace luwu::test {

namespace {

std::uint64_t largest(const JobShape& shape) {
    return *std::max_element(shape.block_bytes.begin(), shape.block_bytes.end());
}

std::uint64_t whole_pages(std::uint64_t bytes) { return store::round_up(bytes, store::kPage); }

bool all_are(const std::byte* memory, std::uint64_t bytes, std::uint8_t value) {
    return std::all_of(memory, memory + bytes, [&](std::byte found) { return found == std::byte{value}; });
}

}  // namespace

std::uint8_t value_of(std::uint32_t block, std::uint32_t step, bool gradient) {
    return static_cast<std::uint8_t>(1 + (block * 7 + step * 31 + (gradient ? 101 : 0)) % 250);
}

ServerTwin::ServerTwin(JobShape shape, std::uint64_t seed, double seconds_per_second)
    : shape_(std::move(shape)),
      seed_(seed),
      clocked_(seconds_per_second > 0),
      updates_(seconds_per_second),
      window_(shape_.window_places * whole_pages(largest(shape_))),
      arena_(whole_pages(shape_.arena_bytes)),
      place_bytes_(whole_pages(largest(shape_))) {
    for (std::uint32_t place = 0; place < shape_.window_places; ++place) free_places_.insert(place);
    pull_thread_ = std::thread([this] { serve_pulls(); });
    push_thread_ = std::thread([this] { serve_pushes(); });
}

ServerTwin::~ServerTwin() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    pull_thread_.join();
    push_thread_.join();
}

fabric::DataPlane::Handle ServerTwin::pull(std::uint32_t block, bool) {
    twin_server_sees_caller();
    const std::lock_guard lock(mutex_);
    pulls_.push_back({next_handle_, block, 0});
    changed_.notify_all();
    return next_handle_++;
}

void ServerTwin::release(std::uint32_t block) {
    twin_server_sees_caller();
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(block);
    if (found == places_.end()) {
        wrong_.push_back("a release of block " + std::to_string(block) + ", which is not held");
        return;
    }
    if (--found->second.second == 0) {
        free_places_.insert(found->second.first);
        places_.erase(found);
    }
    changed_.notify_all();
}

fabric::DataPlane::Handle ServerTwin::push(std::uint32_t block, std::uint64_t arena_offset) {
    twin_server_sees_caller();
    const std::lock_guard lock(mutex_);
    pushes_.push_back({next_handle_, block, arena_offset});
    changed_.notify_all();
    return next_handle_++;
}

std::optional<std::int64_t> ServerTwin::wait(Handle handle, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, at_most, [&] { return failed_ || answers_.contains(handle); });
    if (failed_) throw Error(ErrorKind::server, "the server ended");
    const auto found = answers_.find(handle);
    if (found == answers_.end()) return std::nullopt;
    twin_caller_sees_server();
    return found->second;
}

void ServerTwin::end_step() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pushes_.empty(); });
    for (std::uint32_t block = 0; block < shape_.block_bytes.size(); ++block) {
        if (!pushed_.contains(block)) wrong_.push_back("no gradient of block " + std::to_string(block));
    }
    pushed_.clear();
    ++step_;
    lock.unlock();
    twin_caller_sees_server();
}

void ServerTwin::go_on() {
    const std::lock_guard lock(mutex_);
    stalled_ = false;
    changed_.notify_all();
}

void ServerTwin::fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
}

std::vector<std::string> ServerTwin::wrong() const {
    const std::lock_guard lock(mutex_);
    return wrong_;
}

std::uint32_t ServerTwin::held() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint32_t>(places_.size());
}

void ServerTwin::late(std::mt19937_64& random) const {
    if (!clocked_) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

void ServerTwin::answer(Handle handle, std::int64_t result) {
    answers_[handle] = result;
    changed_.notify_all();
}

void ServerTwin::serve_pulls() {
    std::mt19937_64 random(seed_ + 1);
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] {
            const bool room = !pulls_.empty() && (!free_places_.empty() || places_.contains(pulls_.front().block));
            return ending_ || (!stalled_ && room);
        });
        if (ending_) return;
        const Request request = pulls_.front();
        auto found = places_.find(request.block);
        const bool lies_there = found != places_.end();
        if (lies_there) {  // over UDP all workers make a pull together, and this one would be none
            wrong_.push_back("a pull of block " + std::to_string(request.block) + " before its place was given back");
        }
        if (!lies_there) {
            found = places_.emplace(request.block, std::pair{*free_places_.begin(), 0U}).first;
            free_places_.erase(free_places_.begin());
        }
        ++found->second.second;
        const std::uint64_t offset = found->second.first * place_bytes_;
        const std::uint64_t bytes = shape_.block_bytes[request.block];
        const std::uint8_t value = value_of(request.block, step_, false);
        lock.unlock();
        late(random);
        if (!lies_there) {
            const TwinAccess access{window_.data() + offset, bytes, 1, "the server writes parameters"};
            twin_server_access(&access);
            if (!clocked_) std::fill_n(window_.data() + offset, bytes, std::byte{value});
        }
        lock.lock();
        pulls_.pop_front();
        answer(request.handle, static_cast<std::int64_t>(offset));
    }
}

void ServerTwin::serve_pushes() {
    std::mt19937_64 random(seed_ + 2);
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return ending_ || (!stalled_ && !pushes_.empty()); });
        if (ending_) return;
        const Request request = pushes_.front();
        const std::uint64_t bytes = shape_.block_bytes[request.block];
        const std::uint8_t value = value_of(request.block, step_, true);
        lock.unlock();
        late(random);
        const TwinAccess access{arena_.data() + request.offset, bytes, 0, "the server reads a gradient"};
        twin_server_access(&access);
        updates_.spend(shape_.update_seconds);
        const bool right = clocked_ || all_are(arena_.data() + request.offset, bytes, value);
        lock.lock();
        if (!right) wrong_.push_back("the gradient of block " + std::to_string(request.block) + " is wrong");
        if (!pushed_.insert(request.block).second) wrong_.push_back("a second push of a block");
        pushes_.pop_front();
        answer(request.handle, 0);
    }
}

struct DeviceJob::Kernel {
    DeviceJob* job;
    std::uint32_t block;
    std::uint32_t step;
    const std::byte* parameters;
    std::byte* gradient;

    static void run(void* argument) {
        const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
        const std::uint64_t bytes = kernel->job->shape_.block_bytes[kernel->block];
        if (!all_are(kernel->parameters, bytes, value_of(kernel->block, kernel->step, false))) {
            const std::lock_guard lock(kernel->job->mutex_);
            kernel->job->wrong_.push_back("parameters of block " + std::to_string(kernel->block) + " are wrong");
        }
        if (kernel->gradient != nullptr) {
            std::fill_n(kernel->gradient, bytes, std::byte{value_of(kernel->block, kernel->step, true)});
        }
    }
};

DeviceJob::DeviceJob(const JobShape& shape, const TwinSettings& settings, std::function<void()> make_room)
    : shape_(shape) {
    twin_reset(&settings);
    driver_ = std::make_shared<device::Driver>(LUWU_TWIN_LIBRARY);
    device_ = std::make_unique<device::Device>(driver_, 0);
    server_ = std::make_unique<ServerTwin>(shape_, settings.seed, settings.seconds_per_second);
    engine_ = std::make_unique<device::CopyEngine>(device::EngineSettings{driver_,
                                                                          0,
                                                                          shape_.block_bytes,
                                                                          server_->window(),
                                                                          server_->arena(),
                                                                          shape_.depth,
                                                                          {},
                                                                          std::move(make_room)},
                                                   *server_);
    driver_->check(driver_->functions().stream_create(&compute_, 1), "make a stream");
}

DeviceJob::~DeviceJob() {
    end_engine();
    driver_->functions().stream_destroy(compute_);
}

void DeviceJob::end_engine() {
    synchronise();
    engine_.reset();
}

void DeviceJob::synchronise() const {
    const device::Mark end(*device_);
    end.record(compute_);
    end.wait();
}

std::vector<std::string> DeviceJob::wrong() const {
    std::vector<std::string> all = server_->wrong();
    const std::lock_guard lock(mutex_);
    all.insert(all.end(), wrong_.begin(), wrong_.end());
    for (std::size_t i = 0; i < twin_findings(); ++i) all.emplace_back(twin_finding(i));
    return all;
}

void DeviceJob::run_step() {
    std::vector<std::uint32_t> order(shape_.block_bytes.size());
    for (std::uint32_t block = 0; block < order.size(); ++block) order[block] = block;
    std::vector<std::uint32_t> there_and_back = order;
    there_and_back.insert(there_and_back.end(), order.rbegin(), order.rend());
    for (std::size_t position = 0; position < there_and_back.size(); ++position) {
        ask(there_and_back, position);
        position < order.size() ? forward(there_and_back[position]) : backward(there_and_back[position]);
    }
    until_there([&](auto at_most) { return engine_->settle(at_most); });
    server_->end_step();
    engine_->answered();
    ++step_;
}

void DeviceJob::ask(const std::vector<std::uint32_t>& order, std::size_t position) {
    for (std::size_t i = position; i <= position + shape_.ahead && i < order.size(); ++i) {
        if (asked_.insert(order[i]).second) request(*engine_, order[i], false);
    }
}

void DeviceJob::forward(std::uint32_t block) {
    const auto parameters = until_there([&](auto at_most) { return engine_->take(block, compute_, at_most); });
    launch(block, *parameters, 0);
    until_there([&](auto at_most) { return engine_->release(block, compute_, at_most); });
    asked_.erase(block);
}

void DeviceJob::backward(std::uint32_t block) {
    const auto parameters = until_there([&](auto at_most) { return engine_->take(block, compute_, at_most); });
    const auto gradient = until_there([&](auto at_most) { return engine_->gradient(block, compute_, at_most); });
    launch(block, *parameters, *gradient);
    engine_->push(block, compute_);
    until_there([&](auto at_most) { return engine_->release(block, compute_, at_most); });
    asked_.erase(block);
}

void DeviceJob::launch(std::uint32_t block, device::Address parameters, device::Address gradient) {
    const std::uint64_t bytes = shape_.block_bytes[block];
    const bool clocked = shape_.forward_seconds > 0;
    const bool backward = gradient != 0;
    auto kernel = std::make_unique<Kernel>(Kernel{this, block, step_, reinterpret_cast<const std::byte*>(parameters),
                                                  reinterpret_cast<std::byte*>(gradient)});
    const std::array<TwinAccess, 2> accesses{{{kernel->parameters, bytes, 0, "compute reads parameters"},
                                              {kernel->gradient, bytes, 1, "compute writes a gradient"}}};
    twin_launch(compute_, clocked ? nullptr : &Kernel::run, clocked ? nullptr : kernel.release(), accesses.data(),
                backward ? 2 : 1, shape_.forward_seconds * (backward ? 3 : 1));
}

}  // namespace luwu::test
#endif
