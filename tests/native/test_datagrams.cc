#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <set>
#include <unordered_set>

#include "datagrams.h"

using namespace luwu;
using fabric::Address;
using fabric::UdpOutbox;
using fabric::UdpSettings;
using fabric::UdpSocket;
using test::Bytes;
using test::loopback;
using test::pattern;
using test::patterns;
using test::send;

namespace {

// Groups that can be heard without leaving the machine: for IPv4 on the loopback interface; for IPv6, which has no way
// to a group there, on an interface that has one, with a group that stays within it.
std::vector<Address> multicast_addresses() {
    std::vector<Address> out{loopback()};
    ifaddrs* all = nullptr;
    REQUIRE(getifaddrs(&all) == 0);
    for (const ifaddrs* one = all; one != nullptr && out.size() < 2; one = one->ifa_next) {
        constexpr unsigned kWanted = IFF_UP | IFF_RUNNING | IFF_MULTICAST;
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET6) continue;
        if ((one->ifa_flags & (kWanted | IFF_LOOPBACK)) != kWanted) continue;
        Address address;
        std::memcpy(&address.value, one->ifa_addr, sizeof address.value);
        out.push_back(address);
    }
    freeifaddrs(all);
    if (out.size() == 1) MESSAGE("without IPv6: no interface has an address of it and takes multicast");
    return out;
}

}  // namespace

TEST_CASE("an address is read, written and told from others") {
    const auto ipv4 = fabric::parse_address("10.0.0.7", 4000);
    CHECK(fabric::to_text(ipv4) == "10.0.0.7:4000");
    CHECK(fabric::is_ipv4(ipv4));
    CHECK(ipv4.known());
    CHECK(ipv4 == fabric::parse_address("::ffff:10.0.0.7", 4000));
    const auto ipv6 = fabric::parse_address("fd00:0::7", 4000);
    CHECK(fabric::to_text(ipv6) == "[fd00::7]:4000");
    CHECK_FALSE(fabric::is_ipv4(ipv6));
    CHECK(fabric::to_text(fabric::parse_address("fe80::7%lo", 1)) == "[fe80::7%lo]:1");
    CHECK(fabric::parse_address("fe80::7%1", 1) == fabric::parse_address("fe80::7%lo", 1));
    CHECK_FALSE(fabric::parse_address("fe80::7%1", 1) == fabric::parse_address("fe80::7", 1));
    CHECK_THROWS_WITH_AS((void)fabric::parse_address("::ffff:10.0.0.7%1", 1), doctest::Contains("names an interface"),
                         Error);
    for (const char* end : {"10.0.0.7", "fd00::7"}) {  // what follows a zero byte is no part of an address
        CHECK_THROWS_AS((void)fabric::parse_address(std::string(end) + '\0' + "%1", 1), Error);
    }
    CHECK(fabric::to_text(Address{}) == "nobody");
    CHECK_FALSE(Address{}.known());
    CHECK(fabric::is_multicast(fabric::parse_address("239.1.2.3", 1)));
    CHECK(fabric::is_multicast(fabric::parse_address("ff02::3", 1)));
    CHECK_FALSE(fabric::is_multicast(ipv4));
    CHECK(fabric::is_wildcard(fabric::parse_address("::", 1)));
    CHECK(fabric::is_wildcard(fabric::parse_address("0.0.0.0", 1)));
    CHECK_FALSE(fabric::is_wildcard(ipv4));
    for (const char* wrong : {"", "localhost", "10.0.0", "10.0.0.256", "010.0.0.1 ", "1:2", "fe80::1%",
                              "fe80::1%no-such", "::1%", "[::1]"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS((void)fabric::parse_address(wrong, 1), Error);
    }
    std::unordered_set<Address> addresses;
    std::set<std::size_t> buckets;
    for (std::uint16_t port = 1; port <= 64; ++port) {
        for (int host = 1; host <= 64; ++host) {
            const auto address = fabric::parse_address("10.0.0." + std::to_string(host), port);
            addresses.insert(address);
            buckets.insert(std::hash<Address>{}(address) % 65536);
        }
    }
    CHECK(addresses.size() == 4096);
    CHECK(buckets.size() > 3800);  // of 3,970 with random numbers
}

TEST_CASE("a socket hears which datagrams were marked on the way, also in a run that the kernel put together") {
    constexpr int kMarked = 3;
    for (const Address& address : test::loopbacks()) {
        UdpSocket receiver(address);
        UdpSocket sender(address);
        UdpOutbox outbox(sender);
        const auto marks = [&] {
            std::vector<bool> found;
            const auto sent = patterns(std::vector<std::size_t>(5, 1000));
            send(outbox, receiver.bound(), sent, 0);
            outbox.flush();
            while (found.size() < 5) {
                pollfd waited{receiver.descriptor(), POLLIN, 0};
                REQUIRE(poll(&waited, 1, test::kPatienceMs) > 0);
                receiver.receive();
                receiver.each([&](const Address&, const fabric::Datagram& datagram) {
                    CHECK(datagram.bytes.size() == 1000);
                    found.push_back(datagram.marked);
                });
            }
            return found;
        };
        const auto service = [&] {
            std::array<int, 2> found{-1, -1};
            socklen_t length = sizeof(int);
            getsockopt(sender.descriptor(), IPPROTO_IP, IP_TOS, found.data(), &length);
            getsockopt(sender.descriptor(), IPPROTO_IPV6, IPV6_TCLASS, found.data() + 1, &length);
            return found;
        };
        CHECK(marks() == std::vector<bool>(5, false));
        CHECK(service() == std::array{0, 0});
        sender.let_mark(true);
        CHECK(marks() == std::vector<bool>(5, false));
        CHECK(service() == std::array{2, 2});  // ECT(0)
        // As a queue does that is growing long.
        setsockopt(sender.descriptor(), IPPROTO_IP, IP_TOS, &kMarked, sizeof kMarked);
        setsockopt(sender.descriptor(), IPPROTO_IPV6, IPV6_TCLASS, &kMarked, sizeof kMarked);
        CHECK(marks() == std::vector<bool>(5, true));
        sender.let_mark(false);
        CHECK(marks() == std::vector<bool>(5, false));
    }
}

TEST_CASE("datagrams of many sizes arrive as they were sent") {
    for (const Address& address : test::loopbacks()) {
        for (const bool runs : {true, false}) {
            for (const std::size_t head : {std::size_t{0}, std::size_t{48}}) {
                UdpSettings settings;
                settings.merge_on_receive = settings.segment_on_send = runs;
                UdpSocket receiver(address, settings);
                UdpSocket sender(address, settings);
                UdpOutbox outbox(sender);
                const std::vector<std::vector<std::size_t>> portions{
                    {1, 2, 47, 48, 49, 1472, 1473, 9000},
                    {65'000, 1, 65'001},
                    {sender.payload_limit(receiver.bound())},
                    {0, 0, 5, 0},                                    // empty ones are datagrams too
                    {1456, 1456, 1456, 700, 700, 1456, 1456, 1457},  // a shorter one ends a run
                    std::vector<std::size_t>(64, 1000),
                    std::vector<std::size_t>(65, 100),  // one more than a message takes
                    std::vector<std::size_t>(8, 8880),  // more bytes than a message takes
                    std::vector<std::size_t>(3, 32'600),
                };
                for (const auto& sizes : portions) {
                    const auto sent = patterns(sizes);
                    send(outbox, receiver.bound(), sent, head);
                    outbox.flush();
                    const auto received = test::receive(receiver, sent.size());
                    REQUIRE(received.size() == sent.size());
                    for (std::size_t i = 0; i < sent.size(); ++i) {
                        CHECK(received[i].first == sender.bound());
                        CHECK(received[i].second == sent[i]);
                    }
                }
                CHECK(sender.stats().datagrams_sent == receiver.stats().datagrams_received);
                CHECK(sender.stats().bytes_sent == receiver.stats().bytes_received);
                CHECK(sender.stats().dropped_refused == 0);
                CHECK(sender.stats().segmenting_refused == 0);
                CHECK(sender.stats().send_calls == portions.size());
            }
        }
    }
}

TEST_CASE("a receiver that does not read hinders nobody, and its losses are counted") {
    UdpSettings settings;
    settings.segment_on_send = false;  // the kernel counts a lost run as one
    settings.kernel_receive_bytes = 64 << 10;
    UdpSocket receiver(loopback(), settings);
    UdpSocket sender(loopback(), settings);
    UdpOutbox outbox(sender);
    constexpr std::uint64_t kCount = 5000;
    const Bytes body = pattern(1408, 0);
    for (std::uint64_t i = 0; i < kCount; ++i) outbox.send(receiver.bound(), {}, body);
    outbox.flush();
    CHECK(sender.stats().datagrams_sent + sender.stats().dropped_full == kCount);
    CHECK(receiver.kernel_receive_bytes() == 64 << 10);
    CHECK(receiver.kernel_drops() > 0);
    const auto kept = test::receive(receiver, sender.stats().datagrams_sent - receiver.kernel_drops());
    CHECK(kept.size() + receiver.kernel_drops() == sender.stats().datagrams_sent);
}

TEST_CASE("a batch is as large as the buffers, and tells whether there may be more") {
    UdpSettings settings;
    settings.receive_buffers = 2;
    settings.merge_on_receive = false;
    UdpSocket receiver(loopback(), settings);
    UdpSocket sender(loopback());
    UdpOutbox outbox(sender);
    const auto sent = patterns({1, 2, 3, 4, 5});
    std::vector<Bytes> received;
    CHECK_FALSE(receiver.receive());
    send(outbox, receiver.bound(), sent, 0);
    outbox.flush();
    for (const bool more : {true, true, false}) {
        CHECK(receiver.receive() == more);
        receiver.each([&](const Address&, std::span<const std::byte> datagram) {
            received.emplace_back(datagram.begin(), datagram.end());
        });
    }
    CHECK(received == sent);
}

TEST_CASE("what the network reports is counted, and hinders nothing") {
    UdpSocket socket(loopback());
    UdpSocket other(loopback());
    const int on = 1;
    REQUIRE(setsockopt(socket.descriptor(), IPPROTO_IP, IP_RECVERR, &on, sizeof on) == 0);
    Address gone;
    {
        const UdpSocket closes(loopback());
        gone = closes.bound();
    }
    UdpOutbox outbox(socket);
    UdpOutbox answers(other);
    const Bytes body = pattern(100, 0);
    outbox.send(gone, {}, body);
    outbox.flush();
    pollfd reported{socket.descriptor(), 0, 0};
    REQUIRE(poll(&reported, 1, test::kPatienceMs) == 1);
    CHECK(socket.receive());
    CHECK(socket.stats().receive_errors == 1);
    answers.send(socket.bound(), {}, body);
    answers.flush();
    CHECK(test::receive_bytes(socket, 1) == std::vector<Bytes>{body});
}

TEST_CASE("a datagram longer than a buffer is dropped and counted") {
    UdpSettings settings;
    settings.buffer_bytes = 2048;
    UdpSocket receiver(loopback(), settings);
    CHECK_FALSE(receiver.merges());
    UdpSocket sender(loopback());
    UdpOutbox outbox(sender);
    const auto sent = patterns({2048, 2049, 3000, 100});
    send(outbox, receiver.bound(), sent, 0);
    outbox.flush();
    CHECK(test::receive_bytes(receiver, 2) == std::vector<Bytes>{sent[0], sent[3]});
    CHECK(receiver.stats().dropped_cut == 2);
    CHECK(receiver.stats().datagrams_received == 2);
}

TEST_CASE("a socket knows how long a datagram may be, and where it is bound") {
    for (const Address& address : test::loopbacks()) {
        const UdpSocket socket(address);
        CHECK(fabric::port_of(socket.bound()) != 0);
        CHECK_FALSE(socket.bound() == address);
        const bool ipv4 = fabric::is_ipv4(address);
        Address to = socket.bound();
        CHECK(socket.payload_limit(to) == (ipv4 ? 65'507 : 65'536 - 48));
        try {
            const UdpSocket again(socket.bound());
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::io);
            CHECK(std::string(error.what()).find(fabric::to_text(to) + ": Address already in use; choose") !=
                  std::string::npos);
        }
        CHECK(socket.kernel_receive_bytes() > 0);
        CHECK(socket.kernel_send_bytes() > 0);
    }
    const UdpSocket any(fabric::parse_address("::", 0));
    CHECK(any.payload_limit(loopback(9)) == 65'507);
    CHECK_THROWS_AS((void)any.payload_limit(fabric::parse_address("255.255.255.255", 9)), Error);
    CHECK_THROWS_AS(UdpSocket(fabric::parse_address("192.0.2.1", 0)), Error);
    UdpSettings none;
    none.receive_buffers = 0;
    CHECK_THROWS_AS(UdpSocket(loopback(), none), Error);
}

TEST_CASE("a group hears what is sent to it, beside what is sent to one") {
    for (const Address& address : multicast_addresses()) {
        const bool ipv4 = fabric::is_ipv4(address);
        UdpSocket first(address);
        UdpSocket second(address);
        UdpSocket sender(address);
        const Address group =  // the number of a port of ours is free among the groups' ports
            fabric::parse_address(ipv4 ? "239.255.76.87" : "ff01::4c57", fabric::port_of(sender.bound()));
        CAPTURE(fabric::to_text(group));
        CHECK_THROWS_AS(first.join(first.bound()), Error);
        try {
            first.join(group);
            second.join(group);
        } catch (const Error& error) {
            MESSAGE("skipped: " << std::string(error.what()));
            continue;
        }
        const int on = 1;
        if (!ipv4) setsockopt(sender.descriptor(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, &on, sizeof on);
        UdpOutbox outbox(sender);
        const auto sent = patterns({1200, 1200, 1200, 9});
        send(outbox, group, sent, 48);
        outbox.flush();
        if (sender.stats().datagrams_sent == 0) {
            const Error error = fabric::network_error("send to", group, sender.stats().last_refusal);
            MESSAGE("skipped: " << std::string(error.what()));
            continue;
        }
        outbox.send(first.bound(), {}, sent[3]);
        outbox.flush();
        CHECK(test::receive(first, 5).size() == 5);
        const auto received = test::receive(second, 4);
        REQUIRE(received.size() == 4);
        for (std::size_t i = 0; i < 4; ++i) {
            CHECK(fabric::port_of(received[i].first) == fabric::port_of(sender.bound()));
            CHECK(received[i].second == sent[i]);
        }
    }
}
