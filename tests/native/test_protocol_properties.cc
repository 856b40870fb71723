// The protocol over random trees, windows, forms, damage, switches that start anew and epochs, from seeds; what must
// hold is asked of every datagram that a node sends, and of every step. LUWU_PROPERTY_RUNS asks for more of them.
#include <doctest/doctest.h>

#include <cstdlib>
#include <set>

#include "fabric/protocol/packet.h"
#include "simulated_job.h"

namespace luwu::test::simulated {

namespace {

using fabric::Head;
using fabric::Heartbeat;
using fabric::Packet;
using Bytes = std::vector<std::byte>;

class Random {
  public:
    explicit Random(std::uint64_t seed) : random_(seed) {}
    std::uint64_t from(std::uint64_t first, std::uint64_t last) { return first + random_() % (last - first + 1); }
    bool one_in(std::uint64_t count) { return random_() % count == 0; }
    double share(double most) { return most * static_cast<double>(random_() % 1000) / 1000; }

  private:
    std::mt19937_64 random_;
};

Wiring random_wiring(Random& random) {
    Wiring wiring = small_wiring(static_cast<std::uint32_t>(random.from(1, 7)));
    constexpr luwu_form forms[] = {LUWU_INT32, LUWU_INT16, LUWU_FLOAT32};
    wiring.form = forms[random.from(0, 2)];
    wiring.payload_bytes = static_cast<std::uint32_t>(128 * random.from(1, 4));
    for (std::uint32_t& window : wiring.window) window = static_cast<std::uint32_t>(random.from(1, 40));
    wiring.blocks.clear();
    for (std::uint64_t left = random.from(1, 5); left > 0; --left) {
        wiring.blocks.push_back({random.from(1, random.one_in(3) ? 6000 : 700), !random.one_in(5)});
    }
    return wiring;
}

Damage random_damage(Random& random) {
    Damage damage;
    if (random.one_in(2)) damage.loss = random.share(0.08);
    if (random.one_in(3)) damage.duplicates = random.share(0.1);
    if (random.one_in(3)) damage.reordering = random.share(0.2);
    if (random.one_in(3)) damage.corruption = random.share(0.05);
    return damage;
}

// Looks at every datagram as it is sent.
class Model {
  public:
    explicit Model(const Wiring& wiring) : wiring_(wiring), seal_(wiring.job, wiring.key, wiring.payload_bytes) {}

    void sent(std::uint16_t from, std::uint16_t to, std::span<const std::byte> datagram) {
        ++datagrams;
        Packet packet;
        fabric::PacketDrops drops{};
        const bool whole = seal_.open(datagram, packet, drops);
        wrong += !whole;
        if (!whole) return;
        const Head& head = packet.head;
        if (head.epoch > epoch_) {  // the server said so; what others still send is of the one before
            epoch_ = head.epoch;
            granted_.clear();
            contents_.clear();
        }
        if (head.epoch != epoch_) return;
        head.kind == LUWU_HEARTBEAT ? heartbeat(from, to, packet) : data(from, to, packet, datagram);
    }
    // It knows nothing of what it granted before.
    void restarted(std::uint16_t node) {
        std::erase_if(granted_, [node](auto& entry) { return entry.first.first == node; });
    }

    std::uint64_t datagrams = 0;
    std::uint64_t compared = 0;
    // Number of violations: datagrams that do not verify, packets that were not granted, numbers with other contents
    // than before, sums that are not of all workers.
    std::uint64_t wrong = 0;
    std::uint64_t not_granted = 0;
    std::uint64_t changed = 0;
    std::uint64_t incomplete = 0;
    std::uint64_t bad_heartbeats = 0;

  private:
    static bool is_switch(std::uint16_t node) { return node >= kSwitches && node < kWorkers; }
    static luwu_stream stream_of(std::uint8_t kind) {
        constexpr luwu_stream streams[] = {LUWU_STREAM_PARAMETERS, LUWU_STREAM_PARAMETERS, LUWU_STREAM_REQUESTS,
                                           LUWU_STREAM_EXPONENTS,  LUWU_STREAM_EXPONENTS,  LUWU_STREAM_GRADIENTS};
        return streams[kind];
    }

    void heartbeat(std::uint16_t from, std::uint16_t to, const Packet& packet) {
        Heartbeat state{};
        std::memcpy(&state, packet.payload.data(), packet.payload.size());
        for (std::uint32_t i = 0; i < state.holes_used; ++i) {
            const luwu_hole& hole = state.holes[i];
            bad_heartbeats += hole.stream >= LUWU_STREAMS;
            if (hole.length > 0) continue;  // only behind the stream's last hole, and what has arrived after it
            const bool behind = i > 0 && state.holes[i - 1].stream == hole.stream &&
                                state.holes[i - 1].first + state.holes[i - 1].length < hole.first;
            bad_heartbeats += !behind || (i + 1 < state.holes_used && state.holes[i + 1].stream == hole.stream);
        }
        auto& most = granted_[{to, from}];
        for (std::size_t stream = 0; stream < LUWU_STREAMS; ++stream) {
            most[stream] = std::max(most[stream], state.credit[stream]);
            // Ends of the tree never lose what they had.
            auto& had = acknowledged_[{from, epoch_}][stream];
            if (!is_switch(from)) bad_heartbeats += state.ack[stream] < had;
            had = std::max(had, state.ack[stream]);
        }
    }

    void data(std::uint16_t from, std::uint16_t to, const Packet& packet, std::span<const std::byte> datagram) {
        const Head& head = packet.head;
        const luwu_stream stream = stream_of(head.kind);
        if (!is_switch(from) && head.kind != LUWU_AGREED) {
            not_granted += head.sequence >= granted_[{from, to}][stream];
        }
        if (to == kServer) incomplete += head.count != wiring_.workers;
        // A node sends the same contents under a number whenever it sends it again, also after a new start.
        const auto [known, first] = contents_.try_emplace({from, to, head.kind, head.sequence});
        if (first) known->second.assign(datagram.begin(), datagram.end());
        changed += !std::equal(datagram.begin(), datagram.end(), known->second.begin(), known->second.end());
        ++compared;
    }

    const Wiring& wiring_;
    fabric::Seal seal_;
    std::uint32_t epoch_ = 0;
    std::map<std::pair<std::uint16_t, std::uint16_t>, std::array<std::uint64_t, LUWU_STREAMS>> granted_;  // to, by
    std::map<std::pair<std::uint16_t, std::uint32_t>, std::array<std::uint64_t, LUWU_STREAMS>> acknowledged_;
    std::map<std::tuple<std::uint16_t, std::uint16_t, std::uint8_t, std::uint64_t>, Bytes> contents_;
};

struct Met {
    std::uint64_t datagrams = 0;
    std::uint64_t restarts = 0;
    std::uint64_t epochs = 0;
};

void run_job(std::uint64_t seed, Met& met) {
    Random random(seed);
    const Wiring wiring = random_wiring(random);
    const auto fan_in = static_cast<std::uint32_t>(random.from(2, 4));
    const bool multicast = random.one_in(4);
    const Damage damage = random_damage(random);
    const std::uint64_t restart_every = random.one_in(2) ? random.from(50, 400) : 0;
    INFO("workers " << wiring.workers << ", fan-in " << fan_in << ", form " << static_cast<int>(wiring.form)
                    << ", payload " << wiring.payload_bytes << ", loss " << damage.loss << ", restarts every "
                    << restart_every << ", multicast " << multicast);
    Job job(wiring, fan_in, seed, multicast);
    Model model(wiring);
    job.network.tap = [&](auto from, auto to, auto datagram) {
        model.sent(from, to == kGroup ? job.top() : to, datagram);
    };
    job.network.damage(damage);
    std::uint64_t rounds = 0;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        const std::uint64_t give_up_at = random.one_in(4) ? rounds + random.from(1, 60) : 0;
        bool given_up = false;
        REQUIRE(job.run_step(step, [&] {
            ++rounds;
            if (restart_every != 0 && rounds % restart_every == 0) {
                const auto node = static_cast<std::uint16_t>(random.from(kSwitches, job.top()));
                job.start_switch(node);
                model.restarted(node);
                ++met.restarts;
            }
            if (give_up_at != 0 && rounds == give_up_at) {
                given_up = true;
                job.server->begin_epoch();
                ++met.epochs;
            }
        }));
        CHECK(job.server->broken.empty());
        for (auto& worker : job.workers) {
            CHECK(worker->bad_values == 0);
            worker->forget_interruption();
        }
        if (given_up) {
            // Everybody is in the new epoch before the next step.
            const std::uint32_t epoch = job.server->node.epoch();
            REQUIRE(job.network.run(
                [&] {
                    return std::all_of(job.workers.begin(), job.workers.end(),
                                       [epoch](auto& worker) { return worker->node.epoch() == epoch; });
                },
                10 * kSecond));
            for (auto& worker : job.workers) worker->forget_interruption();
        } else {
            job.check_sums(step);
        }
    }
    CHECK(model.wrong == 0);
    CHECK(model.not_granted == 0);
    CHECK(model.changed == 0);
    CHECK(model.incomplete == 0);
    CHECK(model.bad_heartbeats == 0);
    CHECK(model.compared > 0);
    met.datagrams += model.datagrams;
}

std::uint64_t runs() {
    const char* text = std::getenv("LUWU_PROPERTY_RUNS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 60;
}

}  // namespace

TEST_CASE("random jobs over random networks end with every sum right, and nothing is sent that should not be") {
    Met met;
    for (std::uint64_t seed = 1; seed <= runs(); ++seed) {
        CAPTURE(seed);
        run_job(seed, met);
    }
    MESSAGE(met.datagrams << " datagrams, " << met.restarts << " new starts, " << met.epochs << " epochs");
    CHECK(met.restarts > 0);
    CHECK(met.epochs > 0);
}

}  // namespace luwu::test::simulated
