// Two servers with a part each of every block, and workers that pull from and push to both at once.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "network.h"
#include "store/reader.h"

using namespace luwu;
using fabric::Placement;
using test::Scratch;

namespace {

constexpr auto kFloat = kernels::Dtype::float32;
constexpr std::uint32_t kServers = 2;
constexpr std::uint32_t kWorkers = 2;
constexpr std::chrono::milliseconds kLook{1000};

Placement halves(const store::StoreShape& shape) {
    std::vector<std::vector<Placement::Cut>> cuts;
    std::uint32_t turn = 0;
    for (const store::BlockShape& block : shape.blocks) {
        const std::uint64_t middle = std::min<std::uint64_t>(block.elements, 2048);
        cuts.push_back({{turn, 0, middle}});
        turn = 1 - turn;
        if (middle == block.elements) continue;
        cuts.back().emplace_back(turn, middle, block.elements - middle);
        turn = 1 - turn;
    }
    return {shape, cuts};
}

class Job {
  public:
    explicit Job(const Scratch& scratch) : shape_(test::small_shape(kFloat)), placement_(halves(shape_)) {
        for (std::uint32_t server = 0; server < kServers; ++server) {
            folders_.push_back(scratch.folder("part-" + std::to_string(server)));
            auto settings = test::server_settings(folders_.back(), kFloat, kWorkers);
            settings.shape = placement_.part(shape_, server);
            settings.held.assign(settings.shape.blocks.size(), false);
            settings.one_of_several = true;
            servers_.push_back(test::start_server(settings));
        }
        for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
            fabric::TcpWorkerSettings settings{shape_, std::vector<bool>(shape_.blocks.size(), false), {}, placement_};
            settings.held[0] = true;
            for (const auto& server : servers_) {
                settings.links.push_back(test::tcp_worker_settings(*server, server->port(), rank).links[0]);
            }
            workers_.push_back(std::make_unique<fabric::TcpWorker>(settings));
            endpoints_.push_back(workers_.back()->endpoint());
            test::wait_until([&] { return workers_.back()->wait_connected(kLook); });
            pushes_.emplace_back(kServers, 0);
        }
    }

    void initialise() {
        fabric::Endpoint& mine = *endpoints_[0];
        for (std::uint32_t block = 0; block < shape_.blocks.size(); ++block) {
            auto* values = reinterpret_cast<float*>(mine.arena());
            for (std::uint64_t i = 0; i < shape_.blocks[block].elements; ++i) values[i] = test::first_value(block, i);
            test::finish(mine, mine.initialise(block, 0));
        }
        test::finish(mine, mine.finish_initialise());
    }

    // All workers' step, each in a thread of its own. `spoil`: one server finds a gradient that is not finite.
    void step(std::uint64_t number, bool spoil = false) {
        std::vector<std::thread> threads;
        for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
            threads.emplace_back([this, rank, number, spoil] { run(rank, number, spoil); });
        }
        for (std::thread& thread : threads) thread.join();
    }

    fabric::TcpServer& server(std::uint32_t number) { return *servers_[number]; }
    fabric::Endpoint& endpoint(std::uint32_t rank) { return *endpoints_[rank]; }
    void close() {
        endpoints_.clear();
        workers_.clear();
        servers_.clear();
    }

    // Contents of the parts together.
    [[nodiscard]] std::vector<test::BlockContents> contents() const {
        std::vector<test::BlockContents> all(shape_.blocks.size());
        for (std::uint32_t block = 0; block < all.size(); ++block) {
            for (const fabric::Piece& piece : placement_.pieces(block)) {
                const store::Layout layout(placement_.part(shape_, piece.server), 1);
                const store::ChunkStore store({folders_[piece.server]}, layout, test::kUuid,
                                              store::OpenMode::read_only);
                const auto part = test::read_block(store, piece.block);
                auto& whole = all[block];
                whole.parameters.insert(whole.parameters.end(), part.parameters.begin(), part.parameters.end());
                whole.states.resize(part.states.size());
                for (std::size_t plane = 0; plane < part.states.size(); ++plane) {
                    whole.states[plane].insert(whole.states[plane].end(), part.states[plane].begin(),
                                               part.states[plane].end());
                }
            }
        }
        return all;
    }

  private:
    void run(std::uint32_t rank, std::uint64_t number, bool spoil) {
        fabric::Endpoint& mine = *endpoints_[rank];
        std::vector<std::uint64_t> ended;
        for (const auto& server : servers_) {
            ended.push_back(server->core().begin(rank, {{0.01, 0.9, 0.999, 1e-8, 0.1}}).ended);
        }
        for (auto block = static_cast<std::uint32_t>(shape_.blocks.size()); block-- > 0;) {
            test::finish(mine, mine.pull(block));
            mine.release(block);
            if (!shape_.blocks[block].trainable) continue;
            auto* gradient = reinterpret_cast<float*>(mine.arena());
            for (std::uint64_t i = 0; i < shape_.blocks[block].elements; ++i) {
                gradient[i] = test::gradient_value(rank, number, block, i);
            }
            if (spoil && block == 3) gradient[0] = std::numeric_limits<float>::infinity();
            test::finish(mine, mine.push(block, 0));
            for (const fabric::Piece& piece : placement_.pieces(block)) ++pushes_[rank][piece.server];
        }
        bool commits = true;
        std::vector<std::int64_t> ends;
        for (std::uint32_t server = 0; server < kServers; ++server) {
            servers_[server]->core().vote(rank, false, pushes_[rank][server]);
        }
        for (const auto& server : servers_) {
            ends.push_back(wait_for([&] { return server->core().wait_for_end(rank, kLook); }));
            commits = commits && ends.back() == pipeline::kPrepared;
        }
        CHECK(commits == !spoil);
        for (std::uint32_t server = 0; server < kServers; ++server) {
            auto last_word = servers_[server]->core().last_word(rank);
            last_word.decide(ended[server], commits);
            const auto end = wait_for([&] { return last_word.wait(kLook); });
            CHECK(end == (commits ? pipeline::kCommitted : pipeline::kRolledBack));
        }
    }

    template <typename Look>
    static std::int64_t wait_for(Look&& look) {
        while (true) {
            if (const auto result = look()) return result->value;
        }
    }

    store::StoreShape shape_;
    Placement placement_;
    std::vector<std::string> folders_;
    std::vector<std::unique_ptr<fabric::TcpServer>> servers_;
    std::vector<std::unique_ptr<fabric::TcpWorker>> workers_;
    std::vector<std::unique_ptr<fabric::Endpoint>> endpoints_;
    std::vector<std::vector<std::uint64_t>> pushes_;  // of each worker to each server
};

}  // namespace

TEST_CASE("parts on two servers train as the whole does, and roll back together") {
    const Scratch scratch;
    Job job(scratch);
    job.initialise();
    job.step(1);
    job.step(9, true);
    job.step(2);
    job.close();
    CHECK(test::equal(job.contents(), test::expected_contents(kFloat, kWorkers, 2)));
}

TEST_CASE("one server's failure ends all that a worker waits for") {
    const Scratch scratch;
    Job job(scratch);
    job.initialise();
    job.step(1);
    for (std::uint32_t server = 0; server < kServers; ++server) {
        job.server(server).core().begin(0, {{0.01, 0.9, 0.999, 1e-8, 0.1}});
    }
    const auto push = job.endpoint(0).push(3, 0);
    job.server(1).core().fail(Error(ErrorKind::no_space, "the disk of part 1 is full"));
    const Error error = test::failure_of([&] {
        test::finish(job.endpoint(0), push);                     // may be done before the failure
        test::finish(job.endpoint(0), job.endpoint(0).pull(2));  // which server 1 has a part of
    });
    CHECK(error.kind() == ErrorKind::no_space);
    CHECK(std::string(error.what()) == "the disk of part 1 is full");
    job.close();
}
