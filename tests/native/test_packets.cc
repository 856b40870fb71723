// Nodes drop packets that are not as they should be, count them by reason, and go on.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "fabric/protocol/server_node.h"
#include "fabric/protocol/worker_node.h"
#include "fuzz.h"
#include "kernels/fixed_point.h"
#include "simulated_network.h"
#include "switch/switch_node.h"

namespace luwu::test {

namespace {

using fabric::Head;
using fabric::Heartbeat;
using fabric::Packet;
using fabric::PacketDrop;
using fabric::PacketDrops;
using fabric::Seal;
using fabric::Wiring;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kJob = 5;
constexpr std::uint64_t kKey = 99;
constexpr std::uint16_t kUp = 10;
constexpr std::uint16_t kDown = 20;
constexpr Time kNow = 1'000'000'000;
constexpr std::uint32_t kLongest = 9000;  // that is sealed here: more than a packet may have

Wiring wiring() {
    Wiring wiring;
    wiring.job = kJob;
    wiring.key = kKey;
    wiring.epoch = 3;
    wiring.payload_bytes = 256;
    wiring.form = LUWU_INT32;
    wiring.window = {64, 16, 16, 64};
    wiring.blocks = {{1000, true}, {300, true}, {500, false}};
    wiring.timing = {500'000, 50'000'000, 50'000'000, 1'000'000'000, 5'000'000};
    return wiring;
}

class Sent final : public fabric::Outbox {
  public:
    void send(const Address&, std::span<const std::byte> head, std::span<const std::byte> body) override {
        datagrams.emplace_back(head.begin(), head.end());
        datagrams.back().insert(datagrams.back().end(), body.begin(), body.end());
        if (datagrams.size() > 64) datagrams.clear();
    }
    std::byte* room(std::size_t bytes) override {
        room_.assign(bytes, std::byte{});
        return room_.data();
    }
    std::vector<Bytes> datagrams;

  private:
    Bytes room_;
};

// Thousands of weights are drawn for each: they are kept, for the few keys that there are.
const Seal& seal_of(std::uint64_t job, std::uint64_t key) {
    static std::map<std::pair<std::uint64_t, std::uint64_t>, Seal> seals;
    return seals.try_emplace({job, key}, job, key, kLongest).first->second;
}

Bytes sealed(Head head, const Bytes& payload, std::uint64_t job = kJob, std::uint64_t key = kKey) {
    seal_of(job, key).close(head, payload);
    Bytes datagram(sizeof head + payload.size());
    std::memcpy(datagram.data(), &head, sizeof head);
    std::copy(payload.begin(), payload.end(), datagram.begin() + sizeof head);
    return datagram;
}

Head head_of(std::uint8_t kind, std::uint64_t sequence, std::uint32_t block = 0) {
    Head head{};
    head.kind = kind;
    head.epoch = 3;
    head.sender = LUWU_FROM_PARENT;
    head.sequence = sequence;
    head.block = block;
    return head;
}

// A worker that waits for block 0, whose parameters must never become anything but what was sealed for it.
struct WorkerRig {
    WorkerRig() : node(wiring(), address_of(kUp), 0, {[this] { ++pulled; }, [] {}, [] {}}) {
        node.pull(0, memory.data());
    }
    void receive(const Bytes& datagram, std::uint16_t from = kUp) {
        node.receive(address_of(from), datagram, kNow, sent);
    }
    std::uint64_t drops(PacketDrop reason) { return node.stats().drops[static_cast<std::size_t>(reason)]; }

    Bytes memory = Bytes(4000, std::byte{0x55});
    Sent sent;
    int pulled = 0;
    fabric::WorkerNode node;
};

bool untouched(const Bytes& memory) {
    return std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == std::byte{0x55}; });
}

}  // namespace

TEST_CASE("each thing wrong with a packet is counted under its name, and nothing is changed") {
    WorkerRig rig;
    const Bytes payload(256, std::byte{1});
    const Bytes good = sealed(head_of(LUWU_PARAMETERS, 0), payload);
    const auto spoilt = [&good](std::size_t at) {
        Bytes bytes = good;
        bytes[at] ^= std::byte{1};
        return bytes;
    };
    Bytes longer = good;
    longer.push_back({});
    Head other_epoch = head_of(LUWU_PARAMETERS, 0);
    other_epoch.epoch = 2;
    Head misplaced = head_of(LUWU_PARAMETERS, 1);
    misplaced.index = 0;
    Head child = head_of(LUWU_PARAMETERS, 0);
    child.sender = 0;
    const std::vector<std::pair<Bytes, PacketDrop>> cases = {
        {Bytes(good.begin(), good.begin() + 20), PacketDrop::truncated},
        {Bytes(good.begin(), good.end() - 1), PacketDrop::truncated},
        {longer, PacketDrop::oversized},
        {spoilt(0), PacketDrop::magic},
        {spoilt(2), PacketDrop::version},
        {sealed(head_of(LUWU_PARAMETERS, 0), payload, kJob + 1), PacketDrop::job},
        {sealed(head_of(LUWU_PARAMETERS, 0), payload, kJob, kKey + 1), PacketDrop::checksum},
        {spoilt(sizeof(Head) + 100), PacketDrop::checksum},
        {spoilt(offsetof(Head, block)), PacketDrop::checksum},
        {sealed(other_epoch, payload), PacketDrop::epoch},
        {sealed(child, payload), PacketDrop::sender},
        {sealed(head_of(LUWU_GRADIENTS, 0), payload), PacketDrop::kind},
        {sealed(head_of(LUWU_PARAMETERS, 40), payload), PacketDrop::window},
        {sealed(head_of(LUWU_PARAMETERS, 0, 1), payload), PacketDrop::block},
        {sealed(misplaced, payload), PacketDrop::block},
        {sealed(head_of(LUWU_PARAMETERS, 0), Bytes(100)), PacketDrop::block},
        {sealed(head_of(LUWU_HEARTBEAT, 1), Bytes(30)), PacketDrop::form},
    };
    std::map<PacketDrop, std::uint64_t> expected;
    for (const auto& each : cases) {
        const PacketDrop reason = each.second;
        CAPTURE(name_of(reason));
        rig.receive(each.first);
        CHECK(rig.drops(reason) == ++expected[reason]);
        CHECK(untouched(rig.memory));
    }
    rig.receive(sealed(head_of(LUWU_AGREED, 0), payload), kUp + 1);  // only its parent may answer
    CHECK(rig.drops(PacketDrop::sender) == 2);
    rig.receive(good);
    rig.receive(good);
    CHECK(rig.drops(PacketDrop::duplicate) == 1);
    CHECK(rig.memory[255] == std::byte{1});
    CHECK(rig.memory[256] == std::byte{0x55});
}

TEST_CASE("a heartbeat that was recorded and is sent again changes nothing") {
    WorkerRig rig;
    Bytes payload(offsetof(Heartbeat, holes));
    const auto heartbeat = [&](std::uint64_t number, std::uint64_t credit) {
        Heartbeat values{};
        values.credit[LUWU_STREAM_REQUESTS] = credit;
        std::memcpy(payload.data(), &values, payload.size());
        return sealed(head_of(LUWU_HEARTBEAT, number), payload);
    };
    rig.receive(heartbeat(8, 0));
    rig.receive(heartbeat(8, 1));
    rig.receive(heartbeat(7, 1));
    CHECK(rig.drops(PacketDrop::replayed) == 2);
    rig.node.advance(kNow, rig.sent);
    CHECK(rig.node.stats().packets_out == 0);  // no credit was taken from the replays
    rig.receive(heartbeat(9, 1));
    rig.node.advance(kNow, rig.sent);
    CHECK(rig.node.stats().packets_out == 1);
}

namespace {

Fuzz fuzz_of(std::uint64_t seed) {
    return {seed,
            {0, 32, offsetof(fabric::Heartbeat, holes), offsetof(fabric::Heartbeat, holes) + sizeof(fabric::Hole), 256,
             10, 8832, kLongest},
            [](Head head, const Bytes& payload, std::uint64_t change) {
                return sealed(head, payload, kJob, kKey ^ change);
            }};
}

std::uint64_t total(const PacketDrops& drops) {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : drops) sum += count;
    return sum;
}

}  // namespace

TEST_CASE("packets that strangers make leave counts and nothing else") {
    const std::uint64_t packets = fuzz_packets() / 2;
    Fuzz fuzz = fuzz_of(1);
    WorkerRig rig;
    std::uint64_t calls = 0;
    const auto called = [&calls](auto&&...) { ++calls; };
    fabric::ServerNode server(wiring(), address_of(kDown), {},
                              {called, called,
                               [&calls](std::uint32_t) -> float* {
                                   ++calls;
                                   return nullptr;
                               },
                               called, called});
    switching::SwitchNode tree(wiring(), address_of(kUp), 0, {address_of(kDown), address_of(kDown + 1)});
    for (std::uint64_t i = 0; i < packets; ++i) {
        const Bytes packet = fuzz.packet(false);
        rig.receive(packet);
        server.receive(address_of(kDown), packet, kNow + i, rig.sent);
        tree.receive(address_of(i % 2 == 0 ? kUp : kDown), packet, kNow + i, rig.sent);
    }
    CHECK(untouched(rig.memory));
    CHECK(rig.pulled == 0);
    CHECK(calls == 0);
    CHECK(rig.sent.datagrams.empty());
    CHECK(total(rig.node.stats().drops) == packets);
    CHECK(total(server.stats().drops) == packets);
    CHECK(total(tree.stats().drops) == packets);
}

TEST_CASE("packets that someone with the key makes never reach beyond a node's own memory") {
    const std::uint64_t packets = fuzz_packets() / 2;
    Fuzz fuzz = fuzz_of(2);
    std::unique_ptr<WorkerRig> rig;
    std::unique_ptr<fabric::ServerNode> server;
    std::unique_ptr<switching::SwitchNode> tree;
    std::vector<float> sum(1000);
    const std::vector<float> gradient(1000, 1.0F);
    const Bytes parameters(4000);
    Sent sent;
    std::deque<Bytes> received;  // since the nodes advanced
    std::vector<std::uint64_t> offers;
    for (std::uint64_t i = 0; i < packets; ++i) {
        if (i % 2000 == 0) {
            offers.clear();
            rig = std::make_unique<WorkerRig>();
            rig->node.push(0, reinterpret_cast<const std::byte*>(gradient.data()),
                           std::vector<std::uint8_t>(kernels::fixed_groups(1000), 127));
            fabric::ServerEvents events{[&offers](std::uint64_t pull, std::uint32_t) { offers.push_back(pull); },
                                        [](std::uint32_t) {}, [&sum](std::uint32_t) { return sum.data(); },
                                        [](std::uint32_t, float*) {}, [](const std::string&) {}};
            server = std::make_unique<fabric::ServerNode>(wiring(), address_of(kDown), Address{}, std::move(events));
            tree = std::make_unique<switching::SwitchNode>(wiring(), address_of(kUp), std::uint16_t{0},
                                                           std::vector{address_of(kDown), address_of(kDown + 1)});
        }
        const Bytes& packet = received.emplace_back(fuzz.packet(true));
        const Time now = kNow + i * 10'000;
        rig->node.receive(address_of(kUp), packet, now, sent);
        server->receive(address_of(kDown), packet, now, sent);
        for (const std::uint64_t pull : std::exchange(offers, {})) server->offer(pull, parameters.data());
        tree->receive(address_of(static_cast<std::uint16_t>(i % 2 == 0 ? kUp : kDown + i / 2 % 2)), packet, now, sent);
        if (i % 32 == 0) {
            rig->node.advance(now, sent);
            server->advance(now, sent);
            tree->advance(now, sent);
            received.clear();
        }
    }
}

}  // namespace luwu::test
