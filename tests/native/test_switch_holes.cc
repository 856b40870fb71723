// A switch tells its parent of the holes and marks that its children have told it of.
#include <doctest/doctest.h>

#include <cstring>

#include "fabric/protocol/link.h"
#include "fabric/protocol/windows.h"
#include "last_sent.h"
#include "simulated_job.h"

namespace luwu::test {

namespace {

using fabric::Head;
using fabric::Heartbeat;
using fabric::Hole;
using fabric::Link;
using fabric::Seal;
using simulated::small_wiring;

constexpr std::uint16_t kParent = 1;
constexpr std::uint16_t kSwitch = 2;
constexpr std::uint16_t kFirstChild = 10;

// Keeps the last datagram to the parent, too.
class Mail final : public LastSent {
  public:
    void send(const Address& address, std::span<const std::byte> head, std::span<const std::byte> body) override {
        LastSent::send(address, head, body);
        if (address == address_of(kParent)) up = datagram;
    }
    std::vector<std::byte> up;
};

// A switch with two children, each of which tells of packets that it misses.
struct Told {
    Told() : node(wiring, address_of(kParent), 0, {address_of(kFirstChild), address_of(kFirstChild + 1)}) {}

    void tell(Link& from, std::uint16_t number, const Heartbeat& state) {
        Heartbeat copy = state;
        from.send_heartbeat(copy, wiring.epoch, now, mail);
        const std::vector<std::byte> datagram = mail.datagram;
        node.receive(address_of(number), datagram, now, mail);
    }
    // Returns the switch's heartbeat to its parent after its children have told of these.
    Heartbeat up_after(const std::vector<Heartbeat>& states) {
        tell(parent, kParent, {});
        for (std::uint16_t child = 0; child < states.size(); ++child) {
            tell(children[child], static_cast<std::uint16_t>(kFirstChild + child), states[child]);
        }
        now += 10 * fabric::kMillisecond;
        node.advance(now, mail);
        REQUIRE_FALSE(mail.up.empty());
        Heartbeat up{};
        std::memcpy(&up, mail.up.data() + sizeof(Head), mail.up.size() - sizeof(Head));
        return up;
    }
    std::vector<Hole> merged(const std::vector<Heartbeat>& states) {
        const Heartbeat up = up_after(states);
        return {up.holes, up.holes + up.holes_used};
    }

    fabric::Wiring wiring = small_wiring(2);
    Seal seal{wiring.job, wiring.key, wiring.payload_bytes};
    Time now = 1'000 * fabric::kMillisecond;
    Mail mail;
    Link parent{seal, wiring.timing, address_of(kSwitch), LUWU_FROM_PARENT, 0, 1000, 256};
    std::array<Link, 2> children{Link{seal, wiring.timing, address_of(kSwitch), 0, 0, 1000, 256},
                                 Link{seal, wiring.timing, address_of(kSwitch), 1, 0, 1000, 256}};
    switching::SwitchNode node;
};

Heartbeat missing(std::uint64_t ack, const std::vector<Hole>& holes, std::uint64_t arrived) {
    Heartbeat state{};
    state.ack[LUWU_STREAM_PARAMETERS] = state.heard[LUWU_STREAM_PARAMETERS] = ack;
    for (const Hole& hole : holes) state.holes[state.holes_used++] = hole;
    fabric::close_holes(LUWU_STREAM_PARAMETERS, arrived, state);
    return state;
}

Hole hole(std::uint64_t first, std::uint32_t length) { return {first, length, LUWU_STREAM_PARAMETERS}; }

bool same(const std::vector<Hole>& left, const std::vector<Hole>& right) {
    return left.size() == right.size() && std::equal(left.begin(), left.end(), right.begin(), [](auto& a, auto& b) {
               return a.first == b.first && a.length == b.length && a.stream == b.stream;
           });
}

}  // namespace

TEST_CASE("a switch tells what any child misses, and how far packets have arrived at all of them") {
    const auto found = Told().merged({missing(10, {hole(10, 2), hole(20, 1)}, 50), missing(11, {hole(11, 3)}, 40)});
    CHECK(same(found, {hole(10, 4), hole(20, 1), hole(40, 0)}));
}

TEST_CASE("a child that misses nothing has all that it acknowledges, and no more") {
    const auto found = Told().merged({missing(10, {hole(10, 2)}, 50), missing(30, {}, 0)});
    CHECK(same(found, {hole(10, 2), hole(30, 0)}));
}

TEST_CASE("holes behind what a child has told of wait, because that child may miss what is before them") {
    const auto found = Told().merged({missing(10, {hole(10, 2)}, 0), missing(500, {hole(500, 1), hole(600, 1)}, 700)});
    CHECK(same(found, {hole(10, 2)}));
}

TEST_CASE("a switch tells of marks at the queue of any child, also where another had more before") {
    Told told;
    const auto marked = [](std::uint32_t count, bool counts = true) {
        Heartbeat state{};
        state.marked = count;
        state.counts_marks = counts ? 1 : 0;
        return state;
    };
    CHECK(told.up_after({marked(0), marked(0)}).counts_marks == 1);
    CHECK(told.up_after({marked(500), marked(2)}).marked == 500);
    CHECK(told.up_after({marked(500), marked(5)}).marked == 503);  // the second child's queue alone
    CHECK(told.up_after({marked(504), marked(6)}).marked == 507);
    CHECK(told.up_after({marked(504), marked(1)}).marked == 507);  // another child at the second place
    const Heartbeat uncounted = told.up_after({marked(504), marked(1, false)});
    CHECK(uncounted.counts_marks == 0);
    CHECK_FALSE(told.node.may_be_marked());
}

}  // namespace luwu::test
