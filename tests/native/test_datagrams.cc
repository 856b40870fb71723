#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <set>
#include <unordered_set>

#include "fabric/udp_outbox.h"
#include "network.h"

using namespace luwu;
using fabric::Address;
using fabric::UdpOutbox;
using fabric::UdpSettings;
using fabric::UdpSocket;
using test::Bytes;
using test::loopback;
using test::pattern;

namespace {

// What the kernel was handed: of each message its pieces, and whether it is to be cut into datagrams.
struct Message {
    std::size_t pieces;
    std::size_t bytes;
    bool cut;
};
std::vector<Message> handed;

void note(const mmsghdr* messages, int count) {
    for (int i = 0; i < count; ++i) {
        const msghdr& header = messages[i].msg_hdr;
        std::size_t bytes = 0;
        for (std::size_t piece = 0; piece < header.msg_iovlen; ++piece) bytes += header.msg_iov[piece].iov_len;
        handed.push_back({header.msg_iovlen, bytes, header.msg_controllen != 0});
    }
}

int send_and_note(int descriptor, mmsghdr* messages, unsigned count, int flags) {
    const int sent = sendmmsg(descriptor, messages, count, flags);
    note(messages, sent);
    return sent;
}

int failures_left = 0;
int failure_number = 0;
int send_after_failures(int descriptor, mmsghdr* messages, unsigned count, int flags) {
    if (failures_left == 0) return sendmmsg(descriptor, messages, count, flags);
    --failures_left;
    errno = failure_number;
    return -1;
}

// The first message goes, the second never does.
int send_one_then_full(int descriptor, mmsghdr* messages, unsigned, int flags) {
    if (failures_left++ == 0) return sendmmsg(descriptor, messages, 1, flags);
    errno = EAGAIN;
    return -1;
}

int send_no_runs(int descriptor, mmsghdr* messages, unsigned count, int flags) {
    if (messages[0].msg_hdr.msg_controllen == 0) return sendmmsg(descriptor, messages, 1, flags);
    static_cast<void>(count);
    errno = EIO;
    return -1;
}

void send(UdpOutbox& outbox, const Address& to, const std::vector<Bytes>& datagrams, std::size_t head_bytes) {
    for (const Bytes& datagram : datagrams) {
        const std::size_t head = std::min(head_bytes, datagram.size());
        Bytes copy(datagram.begin(), datagram.begin() + static_cast<std::ptrdiff_t>(head));
        outbox.send(to, copy, std::span(datagram).subspan(head));
        std::fill(copy.begin(), copy.end(), std::byte{0xee});  // heads are copied at once, bodies are not
    }
}

std::vector<Bytes> patterns(const std::vector<std::size_t>& sizes) {
    std::vector<Bytes> out;
    for (const std::size_t bytes : sizes) out.push_back(pattern(bytes, static_cast<unsigned>(out.size())));
    return out;
}

// Where groups can be heard without leaving the machine: for IPv4 the loopback interface; for IPv6, which has no way to
// a group there, an interface that has one, with a group that stays within it.
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
                CHECK(sender.counters().datagrams_sent == receiver.counters().datagrams_received);
                CHECK(sender.counters().bytes_sent == receiver.counters().bytes_received);
                CHECK(sender.counters().dropped_refused == 0);
                CHECK(sender.counters().segmenting_refused == 0);
                CHECK(sender.counters().send_calls == portions.size());
            }
        }
    }
}

TEST_CASE("a run leaves as one message, with as few pieces as the memory allows") {
    UdpSocket receiver(loopback());
    UdpSocket sender(loopback());
    if (!sender.segments()) {
        MESSAGE("skipped: this kernel has no UDP_SEGMENT");
        return;
    }
    UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_and_note);
    handed.clear();
    const Bytes memory = pattern(6'000, 3);
    const std::span<const std::byte> all(memory);
    SUBCASE("heads and bodies lie apart") {
        for (std::size_t i = 0; i < 5; ++i) outbox.send(receiver.bound(), all.first(48), all.subspan(1000 * i, 1000));
        outbox.flush();
        REQUIRE(handed.size() == 1);
        CHECK(handed[0].pieces == 10);
        CHECK(handed[0].bytes == 5 * 1048);
        CHECK(handed[0].cut);
        CHECK(test::receive(receiver, 5).size() == 5);
    }
    SUBCASE("bodies that follow one another are one piece") {
        for (std::size_t i = 0; i < 5; ++i) outbox.send(receiver.bound(), {}, all.subspan(1000 * i, 1000));
        outbox.send(receiver.bound(), {}, all.subspan(5000, 7));
        outbox.send(receiver.bound(), {}, all.subspan(5007, 7));  // a new message: the shorter one ended the run
        outbox.flush();
        REQUIRE(handed.size() == 2);
        CHECK(handed[0].pieces == 1);
        CHECK(handed[0].bytes == 5'007);
        CHECK(handed[1].bytes == 7);
        CHECK_FALSE(handed[1].cut);
        const auto received = test::receive_bytes(receiver, 7);
        REQUIRE(received.size() == 7);
        CHECK(std::memcmp(received[6].data(), memory.data() + 5007, 7) == 0);
    }
    SUBCASE("and so are heads without a body") {
        for (std::size_t i = 0; i < 5; ++i) outbox.send(receiver.bound(), all.subspan(100 * i, 48), {});
        outbox.flush();
        REQUIRE(handed.size() == 1);
        CHECK(handed[0].pieces == 1);
        const auto received = test::receive_bytes(receiver, 5);
        REQUIRE(received.size() == 5);
        CHECK(std::memcmp(received[4].data(), memory.data() + 400, 48) == 0);
    }
    SUBCASE("never more segments or bytes than a message takes") {
        for (int i = 0; i < 65; ++i) outbox.send(receiver.bound(), {}, all.first(10));
        for (int i = 0; i < 14; ++i) outbox.send(receiver.bound(), {}, all.first(5000));
        outbox.flush();
        REQUIRE(handed.size() == 4);
        CHECK(handed[0].bytes == 640);
        CHECK(handed[1].bytes == 10);
        CHECK(handed[2].bytes == 65'000);
        CHECK(handed[3].bytes == 5'000);
        CHECK(test::receive(receiver, 79).size() == 79);
    }
}

TEST_CASE("datagrams to several addresses reach each in order") {
    UdpSocket sender(fabric::parse_address("::", 0));
    std::vector<UdpSocket> receivers;
    for (const Address& address : test::loopbacks()) {
        receivers.emplace_back(address);
        receivers.emplace_back(address);
    }
    UdpOutbox outbox(sender);
    const Bytes short_one = pattern(50, 0);
    for (std::size_t i = 0; i < 40; ++i) {
        for (std::size_t to = 0; to < receivers.size(); ++to) {
            if (i % 3 == 0) outbox.send(receivers[to].bound(), short_one, {});
            std::byte* room = outbox.room(600);
            const Bytes body = pattern(600, static_cast<unsigned>(i + to));
            std::memcpy(room, body.data(), body.size());
            outbox.send(receivers[to].bound(), {}, {room, body.size()});
        }
    }
    outbox.flush();
    for (std::size_t to = 0; to < receivers.size(); ++to) {
        const auto received = test::receive_bytes(receivers[to], 54);
        REQUIRE(received.size() == 54);
        std::size_t next = 0;
        for (std::size_t i = 0; i < 40; ++i) {
            if (i % 3 == 0) CHECK(received[next++] == short_one);
            CHECK(received[next++] == pattern(600, static_cast<unsigned>(i + to)));
        }
    }
}

TEST_CASE("room stays as it is until it is sent, also when the queue is full in between") {
    UdpSocket receiver(loopback());
    UdpSocket sender(loopback());
    UdpOutbox outbox(sender);
    std::byte* room = outbox.room(1000);
    const Bytes kept = pattern(1000, 1);
    std::memcpy(room, kept.data(), kept.size());
    const UdpSocket nobody(loopback());
    for (int i = 0; i < 2000; ++i) outbox.send(nobody.bound(), std::span(kept).first(9), std::span(kept).first(20));
    CHECK(sender.counters().send_calls > 0);
    outbox.send(receiver.bound(), {}, {room, 1000});
    std::memset(outbox.room(1000), 0, 1000);
    outbox.flush();
    CHECK(test::receive_bytes(receiver, 1) == std::vector<Bytes>{kept});

    for (const std::size_t bytes :
         {std::size_t{60'000}, std::size_t{3} << 20}) {  // more than there is: sends, or grows
        for (int i = 0; i < 40; ++i) {
            room = outbox.room(bytes);
            std::memset(room, i, bytes);
            outbox.send(receiver.bound(), {}, {room, 3000});
            if (i % 8 != 7) continue;
            outbox.flush();
            for (const Bytes& datagram : test::receive_bytes(receiver, 8)) {
                CHECK(datagram == Bytes(3000, datagram[0]));
            }
        }
    }
}

TEST_CASE("where runs cannot be sent, their datagrams are, and nothing is lost") {
    UdpSocket receiver(loopback());
    UdpSocket sender(loopback());
    if (!sender.segments()) {
        MESSAGE("skipped: this kernel has no UDP_SEGMENT");
        return;
    }
    auto sent = patterns(std::vector<std::size_t>(20, 1456));
    sent.push_back(pattern(33, 5));
    const auto twice = [&](UdpOutbox& outbox) {
        for (int round = 0; round < 2; ++round) {
            send(outbox, receiver.bound(), sent, 48);
            send(outbox, receiver.bound(), sent, 0);
            outbox.flush();
            const auto received = test::receive_bytes(receiver, 42);
            REQUIRE(received.size() == 42);
            for (std::size_t i = 0; i < 42; ++i) CHECK(received[i] == sent[i % 21]);
        }
        CHECK(sender.counters().datagrams_sent == 84);
        CHECK(sender.counters().bytes_sent == receiver.counters().bytes_received);
        CHECK(sender.counters().dropped_refused == 0);
    };
    SUBCASE("the kernel refuses") {
        const int off = 1;  // it makes no runs of datagrams without checksums
        REQUIRE(setsockopt(sender.descriptor(), SOL_SOCKET, SO_NO_CHECK, &off, sizeof off) == 0);
        UdpOutbox outbox(sender);
        twice(outbox);
        CHECK(sender.counters().segmenting_refused == 2);  // of the first round
    }
    SUBCASE("a device refuses") {
        UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_no_runs);
        twice(outbox);
        CHECK(sender.counters().segmenting_refused == 2);
    }
    SUBCASE("it was the address, not the runs") {
        UdpOutbox outbox(sender);
        for (int i = 0; i < 3; ++i) outbox.send(loopback(0), {}, sent[0]);  // port 0: EINVAL for every one
        outbox.flush();
        CHECK(sender.counters().segmenting_refused == 1);
        CHECK(sender.counters().dropped_refused == 3);
        for (int i = 0; i < 3; ++i) outbox.send(receiver.bound(), {}, sent[0]);
        const auto before = sender.counters().send_calls;
        outbox.flush();
        CHECK(sender.counters().send_calls == before + 1);
        CHECK(test::receive(receiver, 3).size() == 3);
        CHECK(sender.counters().segmenting_refused == 1);
    }
}

TEST_CASE("a send buffer that stays full costs datagrams, not time without end") {
    UdpSocket receiver(loopback());
    UdpSocket sender(loopback());
    failure_number = EAGAIN;
    const auto sent = patterns({100, 200, 300, 400, 400});
    SUBCASE("it has room again") {
        failures_left = 3;
        UdpOutbox outbox(sender, std::chrono::seconds(20), &send_after_failures);
        send(outbox, receiver.bound(), sent, 48);
        outbox.flush();
        CHECK(test::receive_bytes(receiver, 5) == sent);
        CHECK(sender.counters().wait_calls == 3);
        CHECK(sender.counters().dropped_full == 0);
    }
    SUBCASE("it has not") {
        failures_left = 0;
        UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_one_then_full);
        send(outbox, receiver.bound(), sent, 48);
        const auto begin = std::chrono::steady_clock::now();
        outbox.flush();
        CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
        CHECK(sender.counters().dropped_full == 4);
        CHECK(sender.counters().datagrams_sent == 1);
        CHECK(test::receive_bytes(receiver, 1) == std::vector<Bytes>{sent[0]});
        outbox.flush();  // what was dropped is gone
        CHECK(sender.counters().dropped_full == 4);
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
    CHECK(sender.counters().datagrams_sent + sender.counters().dropped_full == kCount);
    CHECK(receiver.kernel_receive_bytes() == 64 << 10);
    CHECK(receiver.kernel_drops() > 0);
    const auto kept = test::receive(receiver, sender.counters().datagrams_sent - receiver.kernel_drops());
    CHECK(kept.size() + receiver.kernel_drops() == sender.counters().datagrams_sent);
}

TEST_CASE("what the kernel refuses is counted, and the rest goes on") {
    UdpSocket receiver(loopback());
    UdpSocket sender(fabric::parse_address("::", 0));
    UdpOutbox outbox(sender);
    const Bytes body = pattern(70'000, 0);
    const auto send_bytes = [&](const Address& to, std::size_t bytes) {
        outbox.send(to, {}, std::span(body).first(bytes));
        outbox.flush();
        return sender.counters().last_refusal;
    };
    CHECK(send_bytes(receiver.bound(), 70'000) == EMSGSIZE);
    CHECK(send_bytes(receiver.bound(), 65'508) == EMSGSIZE);
    CHECK(send_bytes(fabric::parse_address("255.255.255.255", 9), 10) != EMSGSIZE);  // nobody may broadcast
    CHECK(send_bytes(Address{}, 10) == EDESTADDRREQ);
    CHECK(sender.counters().dropped_refused == 4);
    for (const Address& to : {receiver.bound(), loopback(0), receiver.bound()}) {
        outbox.send(to, {}, std::span(body).first(10));
    }
    outbox.flush();
    CHECK(sender.counters().dropped_refused == 5);
    CHECK(test::receive(receiver, 2).size() == 2);
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
    CHECK(receiver.counters().dropped_cut == 2);
    CHECK(receiver.counters().datagrams_received == 2);
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
        if (sender.counters().datagrams_sent == 0) {
            const Error error = fabric::network_error("send to", group, sender.counters().last_refusal);
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
