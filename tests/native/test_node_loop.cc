#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <stdexcept>

#include "datagrams.h"
#include "fabric/core/clock.h"
#include "fabric/udp/node_loop.h"

using namespace luwu;
using fabric::Address;
using fabric::NodeLoop;
using fabric::Outbox;
using fabric::Time;
using fabric::UdpOutbox;
using fabric::UdpSettings;
using fabric::UdpSocket;
using test::Bytes;
using test::loopback;
using test::pattern;

namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr auto kPatience = std::chrono::milliseconds(test::kPatienceMs);

struct TestNode : fabric::Node {
    std::function<void(const Address&, std::span<const std::byte>, Time, Outbox&)> on_receive;
    std::function<Time(Time, Outbox&)> on_advance;
    void receive(const Address& from, const fabric::Datagram& datagram, Time now, Outbox& outbox) override {
        if (on_receive) on_receive(from, datagram, now, outbox);
    }
    [[nodiscard]] bool may_be_marked() const override { return marks; }
    std::atomic<bool> marks = false;
    Time advance(Time now, Outbox& outbox) override { return on_advance ? on_advance(now, outbox) : kNever; }
};

std::string thread_name() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    return name.data();
}

bool comes(const std::future<void>& event) { return event.wait_for(kPatience) == std::future_status::ready; }

}  // namespace

TEST_CASE("a loop calls its node when it asked to be called") {
    TestNode node;
    std::promise<void> done;
    std::vector<Time> times;
    std::string name;
    Time due = 0;
    node.on_advance = [&](Time now, Outbox&) {
        if (times.empty()) name = thread_name();
        times.push_back(now);
        if (due != 0 && now >= due) {
            done.set_value();
            due = 0;
            return kNever;
        }
        if (times.size() == 1) due = now + 30'000'000;
        return due == 0 ? kNever : due;
    };
    NodeLoop loop(UdpSocket(loopback()), node, {.name = "a-name-longer-than-a-thread-may-have"});
    REQUIRE(comes(done.get_future()));
    loop.call([&] {
        REQUIRE(times.size() <= 3);  // it slept: the first, the one at its time, and this call's if it was quick
        CHECK(times[1] >= times[0] + 30'000'000);
        CHECK(name == "a-name-longer-t");
    });
    CHECK(loop.stats().wait_calls >= 1);
}

TEST_CASE("a call from another thread wakes the loop") {
    TestNode node;
    std::promise<void> asleep;
    std::promise<void> done;
    int asked = 0;
    int advances = 0;
    node.on_advance = [&](Time, Outbox&) {
        if (++advances == 1) asleep.set_value();
        if (asked == 100) {
            asked = 0;
            done.set_value();
        }
        return kNever;
    };
    NodeLoop loop(UdpSocket(loopback()), node);
    REQUIRE(comes(asleep.get_future()));
    for (int i = 0; i < 99; ++i) CHECK(loop.call([&] { return ++asked; }) == i + 1);
    CHECK_THROWS_AS(loop.call([&] {
        ++asked;
        throw std::runtime_error("of the caller");
    }),
                    std::runtime_error);
    REQUIRE(comes(done.get_future()));
    CHECK(loop.failure() == nullptr);
}

TEST_CASE("queues may mark what a loop sends while its node says so") {
    UdpSocket receiver(loopback());
    TestNode node;
    const Bytes body = pattern(10, 0);
    node.on_advance = [&](Time, Outbox& outbox) {
        outbox.send(receiver.bound(), {}, body);
        return kNever;
    };
    NodeLoop loop(UdpSocket(loopback()), node);
    // The bits for marks of the next datagrams, until they are these; datagrams from before a change may still come.
    const auto comes_with = [&](std::uint8_t bits) {
        for (int i = 0; i < 100; ++i) {
            loop.call([] {});
            pollfd waited{receiver.descriptor(), POLLIN, 0};
            if (poll(&waited, 1, test::kPatienceMs) <= 0) return false;
            std::array<std::byte, 64> memory{};
            alignas(cmsghdr) std::array<std::byte, 64> control{};
            iovec piece{memory.data(), memory.size()};
            msghdr header{};
            header.msg_iov = &piece;
            header.msg_iovlen = 1;
            header.msg_control = control.data();
            header.msg_controllen = control.size();
            if (recvmsg(receiver.descriptor(), &header, 0) < 0) return false;
            for (cmsghdr* note = CMSG_FIRSTHDR(&header); note != nullptr; note = CMSG_NXTHDR(&header, note)) {
                std::uint8_t service = 0;
                if (note->cmsg_level != IPPROTO_IP || note->cmsg_type != IP_TOS) continue;
                std::memcpy(&service, CMSG_DATA(note), sizeof service);
                if ((service & 3) == bits) return true;
            }
        }
        return false;
    };
    CHECK(comes_with(0));
    node.marks = true;
    CHECK(comes_with(2));
    node.marks = false;
    CHECK(comes_with(0));
}

TEST_CASE("datagrams that the kernel had no room for are counted") {
    TestNode node;
    UdpSettings settings;
    settings.segment_on_send = false;  // the kernel counts a lost run as one
    settings.kernel_receive_bytes = 64 << 10;
    NodeLoop loop(UdpSocket(loopback(), settings), node);
    CHECK(loop.stats().dropped_unread == 0);
    loop.call([&] {  // meanwhile the loop reads one batch at most
        UdpSocket sender(loopback(), settings);
        UdpOutbox outbox(sender);
        const Bytes body = pattern(1408, 0);
        for (int i = 0; i < 5000; ++i) outbox.send(loop.bound(), {}, body);
        outbox.flush();
    });
    CHECK(loop.stats().dropped_unread > 0);
}

TEST_CASE("calls are not kept waiting by a busy loop") {
    TestNode node;
    std::promise<void> running;
    std::atomic<std::uint64_t> turns{0};
    node.on_advance = [&](Time now, Outbox&) {
        if (++turns == 10) running.set_value();
        while (fabric::monotonic_ns() < now + 20'000) continue;  // a turn is work, as of a batch
        return Time{0};
    };
    NodeLoop loop(UdpSocket(loopback()), node);
    REQUIRE(comes(running.get_future()));
    std::vector<std::uint64_t> waited;
    for (int i = 0; i < 101; ++i) {
        for (const std::uint64_t seen = turns; turns == seen;) std::this_thread::yield();
        const std::uint64_t before = turns;
        waited.push_back(loop.call([&] { return turns - before; }));
    }
    std::nth_element(waited.begin(), waited.begin() + 90, waited.end());
    CHECK(waited[90] <= 2);  // the one under way and the next; more only if this thread did not run before its call
}

TEST_CASE("what a node throws stops its loop and is kept") {
    const auto text = [](const std::exception_ptr& failure) {
        try {
            std::rethrow_exception(failure);
        } catch (const std::exception& error) {
            return std::string(error.what());
        }
    };
    TestNode node;
    std::promise<void> done;
    std::exception_ptr told;
    const auto on_failure = [&](std::exception_ptr failure) {
        told = failure;
        done.set_value();
    };
    SUBCASE("from a datagram") {
        node.on_receive = [](const Address&, std::span<const std::byte> datagram, Time, Outbox&) {
            throw Error(ErrorKind::invalid, std::to_string(datagram.size()) + " bytes");
        };
        NodeLoop loop(UdpSocket(loopback()), node, {}, on_failure);
        UdpSocket sender(loopback());
        UdpOutbox outbox(sender);
        const Bytes body = pattern(77, 0);
        outbox.send(loop.bound(), {}, body);
        outbox.flush();
        REQUIRE(comes(done.get_future()));
        CHECK(text(told) == "77 bytes");
        REQUIRE(loop.failure() != nullptr);
        CHECK(text(loop.failure()) == "77 bytes");
        CHECK(loop.call([] { return 5; }) == 5);
    }
    SUBCASE("from the time") {
        node.on_advance = [](Time, Outbox&) -> Time { throw std::runtime_error("no more"); };
        NodeLoop loop(UdpSocket(loopback()), node, {}, on_failure);
        REQUIRE(comes(done.get_future()));
        CHECK(text(told) == "no more");
    }
    SUBCASE("with nobody to tell") {
        node.on_advance = [&](Time, Outbox&) -> Time {
            done.set_value();
            throw std::runtime_error("no more");
        };
        NodeLoop loop(UdpSocket(loopback()), node);
        REQUIRE(comes(done.get_future()));
    }
}

TEST_CASE("a loop stops while it is busy") {
    TestNode first;
    TestNode second;
    std::promise<void> running;
    std::atomic<int> echoes{0};
    const Bytes body = pattern(1000, 0);
    bool started = false;
    first.on_receive =
        second.on_receive = [&](const Address& from, std::span<const std::byte> datagram, Time, Outbox& outbox) {
            outbox.send(from, {}, datagram);
            if (++echoes == 1000) running.set_value();
        };
    NodeLoop two(UdpSocket(loopback()), second);
    first.on_advance = [&](Time, Outbox& outbox) {
        for (int i = 0; !started && i < 40; ++i) outbox.send(two.bound(), {}, body);  // back and forth for ever
        started = true;
        return Time{0};  // and this loop never sleeps
    };
    const NodeLoop one(UdpSocket(loopback()), first);
    REQUIRE(comes(running.get_future()));
}

TEST_CASE("what is forwarded has left before its memory is received into again") {
    UdpSettings settings;
    settings.receive_buffers = 1;
    settings.merge_on_receive = false;  // each datagram is a batch
    TestNode node;
    UdpSocket collector(loopback());
    UdpSocket sender(loopback());
    node.on_receive = [to = collector.bound()](const Address&, std::span<const std::byte> datagram, Time,
                                               Outbox& outbox) { outbox.send(to, {}, datagram); };
    NodeLoop loop(UdpSocket(loopback(), settings), node);
    std::vector<Bytes> sent;
    for (unsigned i = 0; i < 50; ++i) sent.push_back(pattern(500, i));
    loop.call([&] {  // they are all there when the loop goes on
        UdpOutbox outbox(sender);
        for (const Bytes& datagram : sent) outbox.send(loop.bound(), {}, datagram);
        outbox.flush();
    });
    CHECK(test::receive_bytes(collector, sent.size()) == sent);
    CHECK(loop.stats().datagrams_received == sent.size());
    CHECK(loop.stats().datagrams_sent == sent.size());
}
