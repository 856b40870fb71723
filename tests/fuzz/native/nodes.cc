// Packets in any order into a worker, a server and a switch, sealed with the job's key or not: what a participant with
// the key could send. Nothing reaches beyond the memory that was given to them, and what they send themselves is whole.
#include <deque>
#include <memory>

#include "fabric/protocol/server_node.h"
#include "fabric/protocol/worker_node.h"
#include "kernels/fixed_point.h"
#include "switch/switch_node.h"
#include "target.h"

namespace {

using namespace luwu::fabric;
using namespace luwu::switching;
using luwu::fuzz::require;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kJob = 5;
constexpr std::uint64_t kKey = 99;
constexpr std::uint16_t kUp = 10;
constexpr std::uint16_t kDown = 20;
constexpr Time kStart = 1'000'000'000;
constexpr Time kTick = 50'000;
constexpr std::size_t kMostPackets = 256;
constexpr std::array kForms{LUWU_INT32, LUWU_INT16, LUWU_FLOAT32};

Address address_of(std::uint16_t number) {
    Address address;
    address.value.sin6_family = AF_INET6;
    address.value.sin6_port = number;
    return address;
}

Wiring wiring_of(luwu_form form) {
    Wiring wiring;
    wiring.job = kJob;
    wiring.key = kKey;
    wiring.epoch = 3;
    wiring.payload_bytes = 128;
    wiring.form = form;
    wiring.window = {16, 4, 4, 16};
    wiring.blocks = {
        {100, true, luwu::kernels::Dtype::float32}, {300, true, luwu::kernels::Dtype::bfloat16}, {50, false}};
    wiring.timing = {500'000, 50'000'000, 50'000'000, 1'000'000'000, 5'000'000};
    return wiring;
}

const Seal& seal() {
    static const Seal one(kJob, kKey, sizeof(Heartbeat));  // the longest payload that is sealed here
    return one;
}

// Keeps what is sent until the end of a turn, as a loop does, and looks whether it is a packet of the job.
class Checked final : public Outbox {
  public:
    explicit Checked(bool sums) : sums_(sums) {}
    void send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) override {
        require(to.known(), "packets go to somebody");
        Bytes datagram(head.begin(), head.end());
        datagram.insert(datagram.end(), body.begin(), body.end());
        Packet packet{};
        PacketDrops drops{};
        // A switch's sum of packets that were made up is as wrong as they were.
        require(seal().open(datagram, packet, drops) || sums_, "what is sent is a whole packet of the job");
    }
    std::byte* room(std::size_t bytes) override {
        room_.assign(bytes, std::byte{});
        return room_.data();
    }

  private:
    bool sums_;
    Bytes room_;
};

struct Rig {
    explicit Rig(luwu_form form)
        : wiring(wiring_of(form)),
          worker(wiring, address_of(kUp), 0, {[] {}, [] {}, [] {}}),
          server(wiring, address_of(kDown), Address{}, events()),
          tree(wiring, address_of(kUp), 0, {address_of(kDown), address_of(kDown + 1)}) {
        for (std::uint32_t block = 0; block < 2; ++block) {
            memory.emplace_back(wiring.parameter_bytes(block));
            gradients.emplace_back(wiring.parameter_bytes(block), std::byte{0x3C});
            worker.pull(block, memory.back().data());
            worker.push(block, gradients.back().data(),
                        std::vector<std::uint8_t>(wiring.exponent_bytes(block), std::uint8_t{127}));
        }
        for (std::uint32_t block = 0; block < wiring.blocks.size(); ++block) {
            parameters.emplace_back(wiring.parameter_bytes(block));
            sums.emplace_back(wiring.blocks[block].elements);
        }
    }

    ServerEvents events() {
        return {[this](std::uint64_t pull, std::uint32_t block) { wanted.emplace_back(pull, block); },
                [](std::uint32_t) {}, [this](std::uint32_t block) { return sums.at(block).data(); },
                [this](std::uint32_t block, const float* sum) {
                    require(sum == sums.at(block).data(), "a sum is where it began");
                },
                [this](const std::string& what) { broken = what; }};
    }

    // Bits 0 and 1 of the mode: to whom; the others: how it is made.
    void turn(luwu::fuzz::Input& input);
    void receive(std::uint8_t to, const Bytes& datagram);
    void advance();

    Wiring wiring;
    std::vector<Bytes> memory;
    std::vector<Bytes> gradients;
    std::vector<Bytes> parameters;
    std::vector<std::vector<float>> sums;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> wanted;
    std::string broken;
    std::deque<Bytes> received;  // since the nodes advanced
    Time now = kStart;
    std::array<std::uint64_t, 3> packets{};
    Checked sent{false};
    Checked added{true};
    WorkerNode worker;
    ServerNode server;
    SwitchNode tree;
};

enum : std::uint8_t {
    kTo = 3,
    kUnsealed = 4,
    kRaw = 8,
    kAdvances = 16,
    kFromOther = 32,
    kNewEpoch = 64,
    kHeartbeat = 128
};

// A head in a few bytes, with fields of the size that they plausibly have.
Head head_of(std::uint8_t mode, luwu::fuzz::Input& input, bool& zeros) {
    Head head{};
    head.kind = (mode & kHeartbeat) != 0 ? std::uint8_t{LUWU_HEARTBEAT} : input.number();
    head.epoch = 3 + ((mode & kNewEpoch) != 0 ? input.number() : 0U);
    const auto sender = input.number();
    head.sender = sender == 255 ? std::uint16_t{LUWU_FROM_PARENT} : sender;
    head.count = input.number();
    const auto form = input.number();
    head.form = form & 7U;
    head.flags = static_cast<std::uint8_t>(form >> 6U);
    zeros = (form & 8U) != 0;
    head.sequence = input.number();
    head.block = input.number();
    head.index = input.number();
    return head;
}

// A heartbeat whose numbers are a byte each, or eight.
Bytes heartbeat_of(luwu::fuzz::Input& input) {
    const auto shape = input.number();
    Heartbeat heartbeat{};
    const auto number = [&] { return (shape & 128U) != 0 ? input.number<std::uint64_t>() : input.number(); };
    heartbeat.time = number();
    heartbeat.echo = number();
    heartbeat.held = number();
    for (auto* numbers : {heartbeat.next, heartbeat.ack, heartbeat.credit, heartbeat.heard}) {
        for (std::size_t stream = 0; stream < LUWU_STREAMS; ++stream) numbers[stream] = number();
    }
    heartbeat.below = input.number();
    heartbeat.holes_used = shape & 63U;  // more than there may be, too
    const std::uint32_t used = std::min<std::uint32_t>(heartbeat.holes_used, LUWU_MOST_HOLES);
    for (Hole& hole : std::span(heartbeat.holes, used)) {
        hole = {number(), input.number(), input.number()};
    }
    Bytes bytes(offsetof(Heartbeat, holes) + used * sizeof(Hole));
    std::memcpy(bytes.data(), &heartbeat, bytes.size());
    if ((shape & 64U) != 0) bytes.resize(std::min<std::size_t>(bytes.size(), input.number()));
    return bytes;
}

void Rig::turn(luwu::fuzz::Input& input) {
    const auto mode = input.number();
    Bytes datagram;
    if ((mode & kRaw) != 0) {
        datagram = luwu::fuzz::copy_of(input.bytes(input.number()));
    } else {
        bool zeros = false;  // a long payload need not be in the input
        Head head = head_of(mode, input, zeros);
        Bytes payload;
        if ((mode & kHeartbeat) != 0) {
            payload = heartbeat_of(input);
        } else {
            const std::size_t length = input.number();
            if (!zeros) payload = luwu::fuzz::copy_of(input.bytes(length));
            payload.resize(length);
        }
        seal().close(head, payload);
        if ((mode & kUnsealed) != 0) ++head.checksum;
        datagram.resize(sizeof head);
        std::memcpy(datagram.data(), &head, sizeof head);
        datagram.insert(datagram.end(), payload.begin(), payload.end());
    }
    receive(mode, received.emplace_back(std::move(datagram)));
    now += kTick;
    if ((mode & kAdvances) != 0) advance();
}

void Rig::receive(std::uint8_t mode, const Bytes& datagram) {
    const bool other = (mode & kFromOther) != 0;
    switch (mode & kTo) {
        case 0:
            ++packets[0];
            return worker.receive(address_of(other ? kDown : kUp), datagram, now, sent);
        case 1:
            ++packets[1];
            server.receive(address_of(other ? kUp : kDown), datagram, now, sent);
            for (const auto& [pull, block] : std::exchange(wanted, {})) server.offer(pull, parameters.at(block).data());
            return;
        default:
            ++packets[2];
            const auto child = static_cast<std::uint16_t>(kDown + (other ? 1 : 0));
            return tree.receive(address_of((mode & kTo) == 2 ? kUp : child), datagram, now, added);
    }
}

void Rig::advance() {
    (void)worker.advance(now, sent);
    (void)server.advance(now, sent);
    (void)tree.advance(now, added);
    received.clear();
}

}  // namespace

LUWU_FUZZ_TARGET("nodes") {
    luwu::fuzz::Input input(data);
    Rig rig(kForms[input.number() % kForms.size()]);
    for (std::size_t packet = 0; packet < kMostPackets && !input.empty(); ++packet) rig.turn(input);
    rig.now += 2 * kStart;  // all that waits for a time is due
    for (int turn = 0; turn < 3; ++turn) rig.advance();
    require(rig.worker.stats().packets_in == rig.packets[0] && rig.server.stats().packets_in == rig.packets[1] &&
                rig.tree.stats().packets_in == rig.packets[2],
            "every packet is counted");
    require(rig.worker.epoch() >= 3 && rig.server.epoch() == 3 && rig.tree.epoch() >= 3, "epochs only grow");
}
