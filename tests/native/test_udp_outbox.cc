#include <doctest/doctest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

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

// Messages handed to the kernel: the pieces of each, and whether it is to be cut into datagrams.
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

}  // namespace

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
    CHECK(sender.stats().send_calls > 0);
    outbox.send(receiver.bound(), {}, {room, 1000});
    std::memset(outbox.room(1000), 0, 1000);
    outbox.flush();
    CHECK(test::receive_bytes(receiver, 1) == std::vector<Bytes>{kept});

    for (const std::size_t bytes :
         {std::size_t{200'000}, std::size_t{3} << 20}) {  // more than there is: sends, or grows
        for (int i = 0; i < 40; ++i) {
            room = outbox.room(bytes);
            std::memset(room, i, bytes);
            outbox.send(receiver.bound(), {}, {room, 3000});
            if (i % 8 != 7) continue;
            outbox.flush();
            const auto received = test::receive_bytes(receiver, 8);
            REQUIRE(received.size() == 8);
            for (int j = 0; j < 8; ++j) {
                CHECK(received[static_cast<std::size_t>(j)] == Bytes(3000, static_cast<std::byte>(i - 7 + j)));
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
        CHECK(sender.stats().datagrams_sent == 84);
        CHECK(sender.stats().bytes_sent == receiver.stats().bytes_received);
        CHECK(sender.stats().dropped_refused == 0);
    };
    SUBCASE("the kernel refuses") {
        const int off = 1;  // it makes no runs of datagrams without checksums
        REQUIRE(setsockopt(sender.descriptor(), SOL_SOCKET, SO_NO_CHECK, &off, sizeof off) == 0);
        UdpOutbox outbox(sender);
        twice(outbox);
        CHECK(sender.stats().segmenting_refused == 2);  // of the first round
    }
    SUBCASE("a device refuses") {
        UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_no_runs);
        twice(outbox);
        CHECK(sender.stats().segmenting_refused == 2);
    }
    SUBCASE("it was the address, not the runs") {
        UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_and_note);
        for (int i = 0; i < 3; ++i) outbox.send(loopback(0), {}, sent[0]);  // port 0: EINVAL for every one
        outbox.flush();
        CHECK(sender.stats().segmenting_refused == 1);
        CHECK(sender.stats().dropped_refused == 3);
        for (int i = 0; i < 3; ++i) outbox.send(receiver.bound(), {}, sent[0]);
        handed.clear();
        outbox.flush();
        CHECK(handed.size() == 1);
        CHECK(test::receive(receiver, 3).size() == 3);
        CHECK(sender.stats().segmenting_refused == 1);
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
        CHECK(sender.stats().wait_calls == 3);
        CHECK(sender.stats().dropped_full == 0);
    }
    SUBCASE("it has not") {
        failures_left = 0;
        UdpOutbox outbox(sender, std::chrono::milliseconds(20), &send_one_then_full);
        send(outbox, receiver.bound(), sent, 48);
        const auto begin = std::chrono::steady_clock::now();
        outbox.flush();
        CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
        CHECK(sender.stats().dropped_full == 4);
        CHECK(sender.stats().datagrams_sent == 1);
        CHECK(test::receive_bytes(receiver, 1) == std::vector<Bytes>{sent[0]});
        outbox.flush();  // what was dropped is gone
        CHECK(sender.stats().dropped_full == 4);
    }
}

TEST_CASE("what the kernel refuses is counted, and the rest goes on") {
    UdpSocket receiver(loopback());
    UdpSocket sender(fabric::parse_address("::", 0));
    UdpOutbox outbox(sender);
    const Bytes body = pattern(70'000, 0);
    const auto send_bytes = [&](const Address& to, std::size_t bytes) {
        outbox.send(to, {}, std::span(body).first(bytes));
        outbox.flush();
        return sender.stats().last_refusal;
    };
    CHECK(send_bytes(receiver.bound(), 70'000) == EMSGSIZE);
    CHECK(send_bytes(receiver.bound(), 65'508) == EMSGSIZE);
    CHECK(send_bytes(fabric::parse_address("255.255.255.255", 9), 10) != EMSGSIZE);  // nobody may broadcast
    CHECK(send_bytes(Address{}, 10) == EDESTADDRREQ);
    CHECK(sender.stats().dropped_refused == 4);
    for (const Address& to : {receiver.bound(), loopback(0), receiver.bound()}) {
        outbox.send(to, {}, std::span(body).first(10));
    }
    outbox.flush();
    CHECK(sender.stats().dropped_refused == 5);
    CHECK(test::receive(receiver, 2).size() == 2);
}
