// A job over real sockets while strangers send to all of them, and one whose parameters go to a group.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <random>

#include "conformance.h"
#include "datagrams.h"

namespace luwu::test {

namespace {

using fabric::Address;
using fabric::Head;
using fabric::PacketDrop;
using fabric::Seal;

std::uint64_t count(const fabric::PacketDrops& drops, PacketDrop reason) {
    return drops[static_cast<std::size_t>(reason)];
}

// Counts that only a stranger causes; a sound job has none of these.
std::uint64_t strange(const fabric::PacketDrops& drops) {
    std::uint64_t sum = 0;
    for (const PacketDrop reason : {PacketDrop::truncated, PacketDrop::oversized, PacketDrop::magic,
                                    PacketDrop::version, PacketDrop::job, PacketDrop::checksum, PacketDrop::sender}) {
        sum += count(drops, reason);
    }
    return sum;
}

// Plausible packets: of another key, of another job, noise, cut short; and with the right key from the wrong address,
// such as a heartbeat that says that a new epoch has begun.
Bytes strangers_packet(std::mt19937_64& random) {
    static const Seal right(kJob, kPacketKey, 1408);
    static const Seal other_key(kJob, kPacketKey + 1, 1408);
    static const Seal other_job(kJob + 1, kPacketKey, 1408);
    const auto choice = random() % 6;
    Head head{};
    constexpr std::uint8_t kinds[] = {LUWU_REQUEST,   LUWU_EXPONENTS, LUWU_AGREED,
                                      LUWU_GRADIENTS, LUWU_HEARTBEAT, LUWU_PARAMETERS};
    head.kind = kinds[random() % (choice < 3 ? 5 : 6)];
    head.epoch = 1 + static_cast<std::uint32_t>(random() % 3);
    head.sender = random() % 2 == 0 ? std::uint16_t{LUWU_FROM_PARENT} : std::uint16_t{0};
    head.count = 1;
    head.sequence = random() % 40;
    head.block = static_cast<std::uint32_t>(random() % 8);
    Bytes payload(head.kind == LUWU_HEARTBEAT ? offsetof(fabric::Heartbeat, holes) : random() % 2 == 0 ? 1408 : 128);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    const Seal& seal = choice < 3 ? right : choice == 3 ? other_job : other_key;
    seal.close(head, payload);
    Bytes datagram(sizeof head + payload.size());
    std::memcpy(datagram.data(), &head, sizeof head);
    std::memcpy(datagram.data() + sizeof head, payload.data(), payload.size());
    if (choice == 4) datagram.resize(random() % datagram.size());
    if (choice == 5) datagram[random() % sizeof head] ^= std::byte{0x40};
    return datagram;
}

}  // namespace

TEST_CASE("strangers' packets at every socket of a job that trains are dropped and counted, and change nothing") {
    const Scratch scratch;
    JobOptions options;
    options.folder = scratch.folder();
    std::uint64_t steps = 0;
    {
        const auto job = make_udp_job(options);
        job->initialise();
        const auto sockets = job->sockets();
        fabric::UdpSocket stranger(loopback());
        fabric::UdpOutbox outbox(stranger);
        std::mt19937_64 random(5);
        std::uint64_t sent = 0;
        std::atomic<bool> enough{false};
        std::thread nuisance([&] {
            for (int round = 0; round < 40; ++round) {
                for (const Address& socket : sockets) {
                    std::vector<Bytes> packets;  // until they are flushed
                    for (int i = 0; i < 10; ++i) packets.push_back(strangers_packet(random));
                    for (const Bytes& packet : packets) outbox.send(socket, {}, packet);
                    outbox.flush();
                }
                sent += 10;
                wait_until([&] {
                    const auto drops = job->drops();
                    return std::all_of(drops.begin(), drops.end(), [&](auto& one) { return strange(one) >= sent; });
                });
            }
            enough = true;
        });
        while (!enough || steps < 3) {
            ++steps;
            job->train(steps, steps);
        }
        nuisance.join();
        for (const auto& drops : job->drops()) {
            CHECK(strange(drops) == sent);
            for (const PacketDrop reason :
                 {PacketDrop::truncated, PacketDrop::job, PacketDrop::checksum, PacketDrop::sender}) {
                CAPTURE(name_of(reason));
                CHECK(count(drops, reason) > 0);
            }
        }
        CHECK(job->core().stats().rolled_back == 0);
    }
    CHECK(equal(stored_contents({options.folder}, options.dtype), expected_over_udp(options.dtype, 2, steps)));
}

TEST_CASE("parameters that go to a group reach the workers without a copy by the switches") {
    const Scratch scratch;
    JobOptions options;
    options.folder = scratch.folder();
    options.workers = 3;
    options.fan_in = 2;
    constexpr std::uint64_t kSteps = 3;
    {
        const fabric::UdpSocket taken(loopback());  // its port is free among the groups' ports
        options.group = fabric::parse_address("239.255.76.88", fabric::port_of(taken.bound()));
        try {
            fabric::UdpSocket(loopback()).join(options.group);
        } catch (const Error& error) {
            MESSAGE("SKIPPED: no groups here: " << std::string(error.what()));
            return;
        }
        const auto job = make_udp_job(options);
        job->initialise();
        job->train(1, kSteps);
        std::uint64_t packets = 0;
        std::uint64_t agreed = 0;
        for (const store::BlockShape& block : job->shape().blocks) {
            packets += (block.elements * sizeof(float) + 1407) / 1408;
            agreed += block.trainable ? 1 : 0;
        }
        packets *= 2 * kSteps;  // forward and backward, but for the root, which is held
        const auto stats = job->server_stats();
        CHECK(stats.packets_out >= packets - 3 * kSteps);
        CHECK(stats.packets_out - stats.resent <= packets + agreed * kSteps);
        CHECK(job->copies() <= 5 * (agreed * kSteps + stats.resent));  // answers alone: five links lead down
    }
    CHECK(equal(stored_contents({options.folder}, options.dtype), expected_over_udp(options.dtype, 3, kSteps)));
}

}  // namespace luwu::test
