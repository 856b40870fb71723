#include "network.h"

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "kernels/convert.h"

namespace luwu::test {

namespace {
constexpr int kProxyTickMilliseconds = 2;

// The kernel drops all packets that come for a socket, or none.
void lose_packets(const fabric::Descriptor& socket, bool all) {
    sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog program{1, &drop};
    REQUIRE(setsockopt(socket.get(), SOL_SOCKET, all ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program, sizeof program) ==
            0);
}

}  // namespace

fabric::Token token_of(std::uint32_t rank, unsigned generation) {
    fabric::Token token{};
    for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(i * 7 + rank * 31 + generation);
    return token;
}

fabric::ServerSettings server_settings(const std::string& folder, const Dtypes& dtypes, std::uint32_t workers,
                                       std::uint64_t memory_bytes) {
    fabric::ServerSettings settings;
    settings.folders = {folder};
    settings.uuid = kUuid;
    settings.mode = store::OpenMode::create;
    settings.shape = small_shape(dtypes);
    settings.held.assign(settings.shape.blocks.size(), false);
    settings.held[0] = true;
    settings.memory_bytes = memory_bytes;
    settings.workers = workers;
    settings.optimizer_threads = 2;
    return settings;
}

fabric::TcpSettings tcp_settings(const fabric::Timing& timing) { return {"127.0.0.1", 0, kJob, std::nullopt, timing}; }

std::unique_ptr<fabric::TcpServer> start_server(const fabric::ServerSettings& settings,
                                                const fabric::TcpSettings& tcp) {
    auto server = std::make_unique<fabric::TcpServer>(settings, tcp);
    for (std::uint32_t rank = 0; rank < settings.workers; ++rank) server->allow_worker(rank, token_of(rank));
    return server;
}

fabric::TcpWorkerSettings tcp_worker_settings(const fabric::TcpServer& server, std::uint16_t port, std::uint32_t rank,
                                              const fabric::Timing& timing) {
    const fabric::ServerSettings& settings = server.core().settings();
    return {settings.shape,
            settings.held,
            {{"127.0.0.1", port, kJob, rank, settings.workers, token_of(rank), std::nullopt, timing}},
            whole(settings.shape)};
}

fabric::Placement whole(const store::StoreShape& shape) {
    std::vector<std::vector<fabric::Placement::Cut>> cuts;
    for (const store::BlockShape& block : shape.blocks) cuts.push_back({{0U, 0U, block.elements}});
    return {shape, cuts};
}

std::int64_t finish(fabric::Endpoint& endpoint, fabric::Handle handle) {
    while (true) {
        if (const auto result = endpoint.wait(handle, std::chrono::milliseconds(1000))) return *result;
    }
}

Trainee::Trainee(fabric::TcpServer& server, const fabric::TcpWorkerSettings& settings)
    : server_(server),
      rank_(settings.links[0].rank),
      shape_(settings.shape),
      worker_(settings),
      endpoint_(worker_.endpoint()) {
    wait_until([this] { return worker_.wait_connected(std::chrono::milliseconds(100)); });
}

void Trainee::initialise() {
    for (std::uint32_t block = 0; block < shape_.blocks.size(); ++block) {
        auto* values = reinterpret_cast<float*>(endpoint_->arena());
        for (std::uint64_t i = 0; i < shape_.blocks[block].elements; ++i) values[i] = first_value(block, i);
        finish(*endpoint_, endpoint_->initialise(block, 0));
    }
    finish(*endpoint_, endpoint_->finish_initialise());
}

fabric::Handle Trainee::push(std::uint64_t step, std::uint32_t block) {
    std::vector<float> values(shape_.blocks[block].elements);
    for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = gradient_value(rank_, step, block, i);
    const std::vector<std::byte> bytes = rounded(shape_.blocks[block].dtype, values);
    std::memcpy(endpoint_->arena(), bytes.data(), bytes.size());
    ++pushes;
    return endpoint_->push(block, 0);
}

bool Trainee::reads_first_values(std::uint32_t block) {
    const std::uint64_t elements = shape_.blocks[block].elements;
    const auto offset = finish(*endpoint_, endpoint_->pull(block));
    const std::byte* found = endpoint_->window() + offset;
    std::vector<float> values(elements);
    for (std::uint64_t i = 0; i < elements; ++i) values[i] = first_value(block, i);
    const std::vector<std::byte> expected = rounded(shape_.blocks[block].dtype, values);
    const bool same = std::memcmp(found, expected.data(), expected.size()) == 0;
    endpoint_->release(block);
    return same;
}

// Pulls one block ahead, holds the root, and writes into what it pulled: that must stay in this worker.
std::int64_t Trainee::step(std::uint64_t number, bool roll_back) {
    server_.core().begin(rank_, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    const auto blocks = static_cast<std::uint32_t>(shape_.blocks.size());
    const auto hold = [&](fabric::Handle pull) {
        const auto offset = finish(*endpoint_, pull);
        reinterpret_cast<std::uint16_t*>(endpoint_->window() + offset)[5] = 0x7fc0;
    };
    hold(endpoint_->pull(0));
    auto next = endpoint_->pull(1);
    for (std::uint32_t block = 1; block < blocks; ++block) {
        const auto pull = next;
        if (block + 1 < blocks) next = endpoint_->pull(block + 1);
        hold(pull);
        endpoint_->release(block);
    }
    next = endpoint_->pull(blocks - 1);
    for (std::uint32_t block = blocks; block-- > 1;) {
        const auto pull = next;
        if (block > 1) next = endpoint_->pull(block - 1);
        hold(pull);
        if (shape_.blocks[block].trainable) finish(*endpoint_, push(number, block));
        endpoint_->release(block);
    }
    finish(*endpoint_, push(number, 0));
    endpoint_->release(0);
    server_.core().vote(rank_, roll_back, pushes);
    std::optional<pipeline::Outcome> outcome;
    while (!(outcome = server_.core().wait_for_end(rank_, std::chrono::milliseconds(1000)))) {
    }
    return outcome->value;
}

std::vector<std::unique_ptr<Trainee>> join(fabric::TcpServer& server, std::uint16_t port, std::uint32_t workers,
                                           const fabric::Timing& timing) {
    std::vector<std::unique_ptr<Trainee>> all;
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
        all.push_back(std::make_unique<Trainee>(server, tcp_worker_settings(server, port, rank, timing)));
    }
    return all;
}

void train(std::vector<std::unique_ptr<Trainee>>& workers, std::uint64_t first_step, std::uint64_t last_step) {
    std::vector<std::thread> threads;
    for (const auto& worker : workers) {
        threads.emplace_back([&, worker = worker.get()] {
            for (std::uint64_t step = first_step; step <= last_step; ++step) {
                try {
                    CHECK(worker->step(step) == 1);
                } catch (const Error& error) {
                    FAIL_CHECK(error.what());
                    return;
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

Proxy::Proxy(std::uint16_t target)
    : target_(target),
      listener_(fabric::listen_at("127.0.0.1", 0)),
      port_(fabric::bound_port(listener_)),
      thread_([this] { run(); }) {}

Proxy::~Proxy() {
    stopping_ = true;
    thread_.join();
}

void Proxy::cut_after(std::uint64_t up, std::uint64_t down) {
    most_up_ = up;
    most_down_ = down;
}

void Proxy::damage_at(std::uint64_t up, std::uint64_t down) {
    damaged_[1] = up;
    damaged_[0] = down;
}

void Proxy::cut() {
    cut_now_ = true;
    wait_until([this] { return !cut_now_; });
}

void Proxy::deafen(bool deaf) {
    deaf_ = deaf;
    deafen_now_ = true;
    wait_until([this] { return !deafen_now_; });
}

void Proxy::run() {
    while (!stopping_) {
        std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
        for (const Pair& pair : pairs_) {
            if (stalled_[pair.stream]) continue;
            entries.push_back({pair.worker.get(), POLLIN, 0});
            entries.push_back({pair.server.get(), POLLIN, 0});
        }
        poll(entries.data(), entries.size(), kProxyTickMilliseconds);
        if (cut_now_) {
            pairs_.clear();
            cut_now_ = false;
        }
        if (deafen_now_) {
            for (const Pair& pair : pairs_) lose_packets(pair.worker, deaf_);
            deafen_now_ = false;
        }
        std::erase_if(pairs_, [this](Pair& pair) {
            if (stalled_[pair.stream]) return false;
            return !forward(pair, true) || !forward(pair, false);
        });
        fabric::Descriptor worker(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (worker.get() < 0 || refusing_) continue;
        const fabric::Bell bell;
        fabric::Descriptor server =
            fabric::connect_to("127.0.0.1", target_, bell, fabric::Clock::now() + std::chrono::seconds(5));
        pairs_.push_back({std::move(worker), std::move(server)});
    }
}

bool Proxy::forward(Pair& pair, bool up) {
    std::array<char, 4096> bytes{};
    const auto count = recv((up ? pair.worker : pair.server).get(), bytes.data(), bytes.size(), 0);
    if (count == 0) return false;
    if (count < 0) return errno == EAGAIN;
    if (up && pair.up == 0 && count > 12) pair.stream = static_cast<std::size_t>(bytes[12]) % 3;
    std::uint64_t& carried = up ? pair.up : pair.down;
    const std::uint64_t most = up ? most_up_ : most_down_;
    const auto allowed = std::min(static_cast<std::uint64_t>(count), most - std::min(most, carried));
    const std::uint64_t damaged = damaged_[up ? 1 : 0] - carried;
    if (damaged < allowed) bytes[damaged] = static_cast<char>(bytes[damaged] ^ 0x10);
    for (std::uint64_t sent = 0; sent < allowed;) {
        const auto moved =
            send((up ? pair.server : pair.worker).get(), bytes.data() + sent, allowed - sent, MSG_NOSIGNAL);
        if (moved > 0) sent += static_cast<std::uint64_t>(moved);
        if (moved < 0 && errno != EAGAIN) return false;
        if (moved < 0 && (stopping_ || cut_now_)) return false;
    }
    carried += allowed;
    if (allowed == static_cast<std::uint64_t>(count)) return true;
    ++cuts_;
    return false;
}

}  // namespace luwu::test
