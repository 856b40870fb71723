// The same random traffic, with loss, duplicates, reordering, damage and garbage, for a switch in user space and one in
// the kernel: every byte that they send must be the same. LUWU_XDP_PACKETS asks for more of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "fabric/core/clock.h"
#include "switch/kernel_slots.h"
#include "switch/switch_node.h"
#include "xdp_rig.h"

namespace luwu::test {

namespace {

using fabric::Address;
using fabric::Heartbeat;

constexpr std::uint32_t kChildren = 3;
constexpr std::uint32_t kWindow = 8;
constexpr std::uint32_t kSmallWindow = 3;

struct Datagram {
    std::string to;
    Bytes bytes;
    auto operator<=>(const Datagram&) const = default;
};

// Keeps what a switch sends; of heartbeats, what depends neither on the clock nor on how fast the link up is:
// gradients' credit does in the kernel, where sums do not wait.
class Kept final : public fabric::Outbox {
  public:
    void send(const Address& to, std::span<const std::byte> head, std::span<const std::byte> body) override {
        Bytes bytes(head.size() + body.size());
        std::copy(body.begin(), body.end(), std::copy(head.begin(), head.end(), bytes.begin()));
        keep(to, bytes);
    }
    std::byte* room(std::size_t bytes) override {
        rooms_.emplace_back(bytes);
        return rooms_.back().data();
    }
    void keep(const Address& to, Bytes bytes) {
        Head head;
        std::memcpy(&head, bytes.data(), sizeof head);
        if (head.kind == LUWU_HEARTBEAT) {
            bytes = Bytes(bytes.begin() + sizeof head + offsetof(Heartbeat, ack),
                          bytes.begin() + sizeof head + offsetof(Heartbeat, holes_used));
            const auto credit =
                static_cast<std::ptrdiff_t>(sizeof(std::uint64_t) * (LUWU_STREAMS + LUWU_STREAM_GRADIENTS));
            std::fill_n(bytes.begin() + credit, sizeof(std::uint64_t), std::byte{0});
        }
        all.push_back({fabric::to_text(to), std::move(bytes)});
    }
    std::vector<Datagram> all;

  private:
    std::vector<Bytes> rooms_;
};

fabric::Wiring wiring_of(luwu_form form, std::uint32_t payload_bytes) {
    fabric::Wiring wiring = xdp_wiring(payload_bytes, form);
    wiring.window = {64, kSmallWindow, kSmallWindow, kWindow};
    wiring.timing = {0, 1, 50'000'000, 1'000'000'000, 5'000'000};
    return wiring;
}

// Both switches, which get the same.
class Pair {
  public:
    explicit Pair(const fabric::Wiring& wiring)
        : place_(xdp_place(kChildren)),
          program_(wiring, place_),
          user_(wiring, place_.parent, place_.child, place_.children),
          kernel_(wiring, place_.parent, place_.child, place_.children, switching::make_kernel_slots(program_)) {
        for (std::uint32_t peer = 0; peer < kChildren; ++peer) program_.path(peer).interface_number = 1;
        program_.path(LUWU_XDP_PARENT).interface_number = 2;
    }
    // Returns whether both sent the same.
    bool deliver(std::uint32_t peer, const Bytes& datagram) {
        const Address& from = peer == LUWU_XDP_PARENT ? place_.parent : place_.children[peer];
        const fabric::Time now = fabric::monotonic_ns();
        Kept user;
        user_.receive(from, datagram, now, user);
        user_.advance(now, user);
        Kept kernel;
        Bytes frame = program_.frame_from(peer, datagram);
        const Action action = program_.run(frame);
        const std::span<const std::byte> inner = std::span(frame).subspan(kFrameHead);
        if (action == Action::pass) kernel_.receive(from, inner, fabric::monotonic_ns(), kernel);
        if (action == Action::redirect || action == Action::send_back) take_redirected(inner, kernel);
        kernel_.advance(fabric::monotonic_ns(), kernel);
        for (Kept* kept : {&user, &kernel}) std::sort(kept->all.begin(), kept->all.end());
        sent += user.all.size();
        return user.all == kernel.all;
    }
    std::uint64_t sent = 0;
    [[nodiscard]] XdpProgram::Stats stats() const { return program_.stats(); }

  private:
    void take_redirected(std::span<const std::byte> datagram, Kept& kept) {
        Head head;
        std::memcpy(&head, datagram.data(), sizeof head);
        const Bytes bytes(datagram.begin(), datagram.end());
        if (head.kind == LUWU_GRADIENTS) return kept.keep(place_.parent, bytes);
        for (const Address& child : place_.children) kept.keep(child, bytes);
    }

    switching::XdpPlace place_;
    XdpProgram program_;
    switching::SwitchNode user_;
    switching::SwitchNode kernel_;
};

class Traffic {
  public:
    Traffic(std::uint64_t seed, luwu_form form, std::uint32_t payload_bytes)
        : random_(seed), wiring_(wiring_of(form, payload_bytes)), seal_(wiring_.job, wiring_.key, payload_bytes) {}

    [[nodiscard]] const fabric::Wiring& wiring() const { return wiring_; }
    // The next datagram, and who sends it.
    std::pair<std::uint32_t, Bytes> next() {
        const std::uint64_t choice = random_() % 100;
        if (choice < 72) return from_child(LUWU_GRADIENTS);
        if (choice < 78) return from_child(random_() % 2 == 0 ? LUWU_EXPONENTS : LUWU_REQUEST);
        if (choice < 88) return {LUWU_XDP_PARENT, spoil(parents_packet())};
        if (choice < 96) return {LUWU_XDP_PARENT, spoil(heartbeat(LUWU_FROM_PARENT))};
        const auto child = static_cast<std::uint32_t>(random_() % kChildren);
        if (choice < 98) return {child, heartbeat(static_cast<std::uint16_t>(child))};
        return {child, garbage()};
    }

  private:
    [[nodiscard]] bool one_in(std::uint64_t count) { return random_() % count == 0; }

    std::pair<std::uint32_t, Bytes> from_child(luwu_kind kind) {
        const auto child = static_cast<std::uint32_t>(random_() % kChildren);
        const std::uint64_t most = kind == LUWU_GRADIENTS ? kWindow : kSmallWindow;
        Head head{};
        head.sequence = base_[kind] + random_() % (most + (one_in(20) ? 4 : 0));
        if (base_[kind] > 4 && one_in(20)) head.sequence -= 4;
        head.kind = static_cast<std::uint8_t>(kind);
        head.form = static_cast<std::uint8_t>(kind == LUWU_GRADIENTS ? wiring_.form : LUWU_BYTES);
        head.sender = static_cast<std::uint16_t>(child);
        head.count = 1;
        head.block = one_in(2000) ? 1 : 0;
        head.index = static_cast<std::uint32_t>(head.sequence);
        return {one_in(300) ? (child + 1) % kChildren : child, spoil(seal(head, payload_of(head, child)))};
    }
    // The same for the same packet, and every seventh of another length.
    [[nodiscard]] Bytes payload_of(const Head& head, std::uint32_t child) const {
        std::mt19937_64 random(head.sequence * 8 + child + 1000 * epoch_);
        if (head.kind == LUWU_REQUEST) return {};
        const std::size_t bytes = head.sequence % 7 != 3 ? wiring_.payload_bytes : 4 * (head.sequence % 31) + 4;
        return mantissas(random, bytes, wiring_.form, kChildren);
    }
    Bytes parents_packet() {
        Head head{};
        head.kind = one_in(5) ? LUWU_AGREED : LUWU_PARAMETERS;
        head.sender = LUWU_FROM_PARENT;
        head.sequence = random_() % 100;
        return seal(head, Bytes(random_() % (wiring_.payload_bytes + 1), std::byte{0xa5}));
    }
    Bytes heartbeat(std::uint16_t sender) {
        Heartbeat state{};
        if (sender == LUWU_FROM_PARENT && one_in(60)) {
            ++epoch_;
            base_ = {};
        }
        for (const int kind : {LUWU_REQUEST, LUWU_EXPONENTS, LUWU_GRADIENTS}) {
            if (sender == LUWU_FROM_PARENT && one_in(2)) base_[kind] += random_() % 3;
        }
        const std::array streams{std::uint64_t{0}, base_[LUWU_REQUEST], base_[LUWU_EXPONENTS], base_[LUWU_GRADIENTS]};
        std::copy(streams.begin(), streams.end(), state.ack);
        std::copy(streams.begin(), streams.end(), state.heard);
        for (std::uint64_t& credit : state.credit) credit = 1'000'000;
        // The window's worth of gradients has room on the link up, so that no sum waits for it in user space.
        state.heard[LUWU_STREAM_REQUESTS] = state.heard[LUWU_STREAM_EXPONENTS] = 1'000'000;
        if (sender == LUWU_FROM_PARENT && one_in(12)) {
            state.holes_used = 1;
            state.holes[0] = {base_[LUWU_GRADIENTS] + random_() % 4, 3, LUWU_STREAM_GRADIENTS};
        }
        Head head{};
        head.kind = LUWU_HEARTBEAT;
        head.sender = sender;
        head.sequence = ++number_;
        const auto bytes =
            std::as_bytes(std::span(&state, 1)).first(offsetof(Heartbeat, holes) + state.holes_used * 16);
        return seal(head, Bytes(bytes.begin(), bytes.end()));
    }
    Bytes garbage() {
        Bytes bytes(random_() % 300);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
        return bytes;
    }
    Bytes seal(Head head, const Bytes& payload) {
        head.epoch = epoch_ + (head.kind != LUWU_HEARTBEAT && one_in(100) ? 1 : 0);
        seal_.close(head, payload);
        return datagram_of(head, payload);
    }
    Bytes spoil(Bytes datagram) {
        if (!one_in(25)) return datagram;
        if (one_in(4)) datagram.resize(random_() % datagram.size());
        if (!datagram.empty()) datagram[random_() % datagram.size()] ^= static_cast<std::byte>(1U << random_() % 8);
        return datagram;
    }

    std::mt19937_64 random_;
    fabric::Wiring wiring_;
    fabric::Seal seal_;
    std::uint32_t epoch_ = wiring_.epoch;
    std::array<std::uint64_t, 8> base_{};  // by kind
    std::uint64_t number_ = 0;
};

}  // namespace

TEST_CASE("XDP: every byte that the switch in the kernel sends is the one that user space sends") {
    if (!can_run_xdp()) return;
    const char* const asked = std::getenv("LUWU_XDP_PACKETS");
    const std::uint64_t packets = asked == nullptr ? 20'000 : std::strtoull(asked, nullptr, 10);
    for (const luwu_form form : {LUWU_INT32, LUWU_INT16}) {
        for (const std::uint32_t payload_bytes : {128U, 1408U}) {
            CAPTURE(form);
            CAPTURE(payload_bytes);
            Traffic traffic(form + payload_bytes, form, payload_bytes);
            Pair pair(traffic.wiring());
            for (std::uint64_t number = 0; number < packets / 4; ++number) {
                const auto [peer, datagram] = traffic.next();
                CAPTURE(number);
                REQUIRE(pair.deliver(peer, datagram));
            }
            CHECK(pair.sent > packets / 8);
            CHECK(pair.stats()[LUWU_XDP_SUMS_SENT] > packets / 200);
            CHECK(pair.stats()[LUWU_XDP_SUMS_AGAIN] > 10);
        }
    }
}

}  // namespace luwu::test
