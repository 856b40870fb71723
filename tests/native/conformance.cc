#include "conformance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "fabric/shm/shm_server.h"
#include "kernels/convert.h"
#include "kernels/fixed_point.h"
#include "kernels/remainder.h"
#include "switch_choice.h"

namespace luwu::test {

fabric::ServerSettings settings_of(const JobOptions& options) {
    return server_settings(options.folder, options.dtype, options.workers, options.memory_bytes);
}

namespace {

using fabric::Endpoint;
using std::chrono::milliseconds;

class SharedMemoryJob final : public TestJob {
  public:
    explicit SharedMemoryJob(const JobOptions& options) : TestJob(options), votes_(options.workers) {
        server_ = std::make_unique<fabric::ShmServer>(settings_of(options));
        for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
            const auto files = server_->files_of(rank);
            endpoints_.push_back(std::make_unique<Endpoint>(fabric::EndpointFiles{files[0], files[1], files[2], -1},
                                                            rank, fabric::MapMode::private_copy));
        }
    }
    fabric::ParameterServer& core() override { return server_->core(); }
    Endpoint& endpoint(std::uint32_t rank) override { return *endpoints_[rank]; }
    void begin(std::uint32_t rank, const Groups& groups) override { endpoints_[rank]->begin(groups); }
    void vote(std::uint32_t rank, bool roll_back) override { votes_[rank] = endpoints_[rank]->vote(roll_back); }
    std::optional<std::int64_t> outcome(std::uint32_t rank, milliseconds at_most) override {
        return endpoints_[rank]->wait(votes_[rank], at_most);
    }
    void leave(std::uint32_t rank) override { server_->leave(rank); }
    void close_server() override { server_.reset(); }

  private:
    std::unique_ptr<fabric::ShmServer> server_;
    std::vector<std::unique_ptr<Endpoint>> endpoints_;
    std::vector<fabric::Handle> votes_;
};

class TcpJob final : public TestJob {
  public:
    explicit TcpJob(const JobOptions& options) : TestJob(options), server_(start_server(settings_of(options))) {
        for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
            workers_.push_back(
                std::make_unique<fabric::TcpWorker>(tcp_worker_settings(*server_, server_->port(), rank)));
            endpoints_.push_back(workers_.back()->endpoint());
        }
        for (auto& worker : workers_) wait_until([&] { return worker->wait_connected(milliseconds(100)); });
    }
    fabric::ParameterServer& core() override { return server_->core(); }
    Endpoint& endpoint(std::uint32_t rank) override { return *endpoints_[rank]; }
    void begin(std::uint32_t rank, const Groups& groups) override { core().begin(rank, groups); }
    void vote(std::uint32_t rank, bool roll_back) override { core().vote(rank, roll_back, pushes(rank)); }
    std::optional<std::int64_t> outcome(std::uint32_t rank, milliseconds at_most) override {
        const auto result = core().wait_for_end(rank, at_most);
        return result ? std::optional(result->value) : std::nullopt;
    }
    void leave(std::uint32_t rank) override { core().leave(rank); }
    void close_server() override { server_.reset(); }

  private:
    std::unique_ptr<fabric::TcpServer> server_;
    std::vector<std::unique_ptr<fabric::TcpWorker>> workers_;
    std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace

std::span<const Transport> transports() {
    static constexpr std::array kAll{Transport::shared_memory, Transport::tcp, Transport::udp};
    return switches_of_tests().empty() ? std::span<const Transport>(kAll) : std::span(kAll).last(1);
}

const char* name_of(Transport transport) {
    constexpr std::array kNames{"shared memory", "TCP", "UDP"};
    return kNames[static_cast<std::size_t>(transport)];
}

TestJob::TestJob(const JobOptions& options) : shape_(small_shape(options.dtype)), pushes_(options.workers, 0) {}

std::unique_ptr<TestJob> make_job(Transport transport, const JobOptions& options) {
    switch (transport) {
        case Transport::shared_memory:
            return std::make_unique<SharedMemoryJob>(options);
        case Transport::tcp:
            return std::make_unique<TcpJob>(options);
        case Transport::udp:
            return make_udp_job(options);
    }
    return nullptr;
}

std::int64_t TestJob::wait_outcome(std::uint32_t rank) {
    while (true) {
        if (const auto result = outcome(rank, milliseconds(500))) return *result;
    }
}

void TestJob::initialise() {
    Endpoint& mine = endpoint(0);
    for (std::uint32_t block = 0; block < shape_.blocks.size(); ++block) {
        auto* values = reinterpret_cast<float*>(mine.arena());
        for (std::uint64_t i = 0; i < shape_.blocks[block].elements; ++i) values[i] = first_value(block, i);
        finish(mine, mine.initialise(block, 0));
    }
    finish(mine, mine.finish_initialise());
}

fabric::Handle TestJob::push(std::uint32_t rank, std::uint64_t step, std::uint32_t block, bool spoil) {
    const std::uint64_t elements = shape_.blocks[block].elements;
    std::vector<float> values(elements);
    for (std::uint64_t i = 0; i < elements; ++i) values[i] = gradient_value(rank, step, block, i);
    if (spoil) values[elements / 2] = std::numeric_limits<float>::infinity();
    const std::uint64_t place = pushes_[rank]++ % 2 * (endpoint(rank).arena_bytes() / 2 / 64 * 64);
    std::byte* to = endpoint(rank).arena() + place;
    const std::vector<std::byte> bytes = rounded(shape_.blocks[block].dtype, values);
    std::memcpy(to, bytes.data(), bytes.size());
    return endpoint(rank).push(block, place);
}

std::int64_t TestJob::pull(std::uint32_t rank, std::uint32_t block) {
    return finish(endpoint(rank), endpoint(rank).pull(block));
}

std::vector<std::byte> TestJob::read(std::uint32_t rank, std::uint32_t block) {
    const std::byte* found = endpoint(rank).window() + pull(rank, block);
    std::vector<std::byte> copy(found, found + shape_.blocks[block].bytes());
    endpoint(rank).release(block);
    return copy;
}

std::int64_t TestJob::step(std::uint32_t rank, std::uint64_t number, bool roll_back, bool spoil) {
    Endpoint& mine = endpoint(rank);
    begin(rank, kGroups);
    const auto blocks = static_cast<std::uint32_t>(shape_.blocks.size());
    const auto hold = [&](fabric::Handle handle) {  // and writes into what it pulled: that must stay in this worker
        reinterpret_cast<std::uint16_t*>(mine.window() + finish(mine, handle))[5] = 0x7fc0;
    };
    hold(mine.pull(0));
    auto next = mine.pull(1);
    for (std::uint32_t block = 1; block < blocks; ++block) {
        const auto now = next;
        if (block + 1 < blocks) next = mine.pull(block + 1);
        hold(now);
        mine.release(block);
    }
    next = mine.pull(blocks - 1);
    std::vector<fabric::Handle> sent;
    for (std::uint32_t block = blocks; block-- > 1;) {
        const auto now = next;
        if (block > 1) next = mine.pull(block - 1);
        hold(now);
        if (shape_.blocks[block].trainable) {
            if (sent.size() > 1) finish(mine, sent[sent.size() - 2]);
            sent.push_back(push(rank, number, block, spoil && block == 2));
        }
        mine.release(block);
    }
    finish(mine, sent[sent.size() - 2]);
    sent.push_back(push(rank, number, 0));
    mine.release(0);
    for (std::size_t last = sent.size() - 2; last < sent.size(); ++last) finish(mine, sent[last]);
    vote(rank, roll_back);
    return wait_outcome(rank);
}

void TestJob::all(const std::function<void(std::uint32_t rank)>& work) const {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < workers(); ++rank) {
        threads.emplace_back([&work, rank] {
            try {
                work(rank);
            } catch (const Error& error) {
                FAIL_CHECK("worker " << rank << ": " << std::string(error.what()));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

void TestJob::train(std::uint64_t first_step, std::uint64_t last_step) {
    all([&](std::uint32_t rank) {
        for (std::uint64_t number = first_step; number <= last_step; ++number) CHECK(step(rank, number) == 1);
    });
}

std::vector<std::byte> first_parameters(const store::StoreShape& shape, std::uint32_t block) {
    const store::BlockShape& about = shape.blocks[block];
    std::vector<float> values(about.elements);
    for (std::uint64_t i = 0; i < about.elements; ++i) values[i] = first_value(block, i);
    if (!about.trainable || about.master() != store::Master::remainder) return rounded(about.dtype, values);
    std::vector<std::byte> copy(about.bytes());  // whose ties are rounded otherwise
    std::vector<std::uint16_t> remainder(about.elements);
    kernels::split_master(values.data(), reinterpret_cast<std::uint16_t*>(copy.data()), remainder.data(),
                          about.elements);
    return copy;
}

std::vector<BlockContents> expected_over_udp(const Dtypes& dtypes, std::uint32_t workers, std::uint64_t steps,
                                             luwu_form form) {
    const auto fixed = form == LUWU_INT16 ? kernels::FixedForm::int16 : kernels::FixedForm::int32;
    return expected_contents(
        dtypes, workers, steps,
        [&](const std::vector<const void*>& gradients, kernels::Dtype dtype, std::uint64_t elements) {
            std::vector<std::uint8_t> agreed(kernels::fixed_groups(elements));
            std::vector<std::uint8_t> own(agreed.size());
            for (const void* gradient : gradients) {
                kernels::fixed_exponents(gradient, dtype, elements, own.data());
                kernels::max_exponents(agreed.data(), own.data(), own.size());
            }
            std::vector<std::byte> sum(elements * kernels::size_of(fixed));
            std::vector<std::byte> mantissas(sum.size());
            for (const void* gradient : gradients) {
                kernels::fixed_encode(gradient, dtype, elements, agreed.data(), fixed, workers, mantissas.data());
                kernels::add_mantissas(sum.data(), mantissas.data(), fixed, elements);
            }
            std::vector<float> values(elements);
            kernels::fixed_decode(sum.data(), fixed, elements, agreed.data(), workers, values.data());
            return values;
        });
}

}  // namespace luwu::test
