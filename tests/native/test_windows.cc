// The two ends of a stream against models that keep everything: random calls from seeds, every answer compared.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "fabric/protocol/windows.h"

using namespace luwu::fabric;

namespace {

using Verdict = ReceiveWindow::Verdict;

class Random {
  public:
    explicit Random(std::uint64_t seed) : random_(seed) {}
    std::uint64_t below(std::uint64_t end) { return random_() % end; }
    bool one_in(std::uint64_t count) { return below(count) == 0; }

  private:
    std::mt19937_64 random_;
};

struct ReceiveModel {
    std::uint64_t slots;
    std::uint64_t ack = 0;
    std::set<std::uint64_t> arrived;  // at or above ack

    void settle() {
        while (arrived.erase(ack) > 0) ++ack;
    }
    [[nodiscard]] Verdict look(std::uint64_t sequence) const {
        if (sequence < ack || arrived.contains(sequence)) return Verdict::duplicate;
        return sequence < ack + slots ? Verdict::fresh : Verdict::outside;
    }
    // Runs of what is missing below `next` and the highest that arrived; a last one of length 0 behind what has
    // arrived.
    [[nodiscard]] std::vector<std::pair<std::uint64_t, std::uint64_t>> holes(std::uint64_t next) const {
        const std::uint64_t highest = arrived.empty() ? ack : *arrived.rbegin() + 1;
        const std::uint64_t until = std::min(std::max(next, highest), ack + slots);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
        for (std::uint64_t at = ack; at < until; ++at) {
            if (arrived.contains(at)) continue;
            if (!runs.empty() && runs.back().first + runs.back().second == at) {
                ++runs.back().second;
            } else {
                runs.emplace_back(at, 1);
            }
        }
        if (!runs.empty() && runs.back().first + runs.back().second < until) runs.emplace_back(until, 0);
        return runs;
    }
};

// Runs both through the same calls; the number of calls that changed something.
std::uint64_t compare_receivers(std::uint64_t seed) {
    Random random(seed);
    const auto slots = static_cast<std::uint32_t>(1 + random.below(seed % 3 == 0 ? 300 : 20));
    ReceiveWindow window(slots);
    ReceiveModel model{slots, 0, {}};
    std::uint64_t changes = 0;
    for (int call = 0; call < 300; ++call) {
        const std::uint64_t sequence = model.ack + random.below(slots + 4) - std::min<std::uint64_t>(model.ack, 2);
        REQUIRE(window.look(sequence) == model.look(sequence));
        if (model.look(sequence) == Verdict::fresh && !random.one_in(4)) {
            window.mark(sequence);
            model.arrived.insert(sequence);
            model.settle();
            ++changes;
        } else if (random.one_in(40)) {
            window.skip_to(sequence);
            model.ack = std::max(model.ack, sequence);
            model.arrived.erase(model.arrived.begin(), model.arrived.lower_bound(model.ack));
            model.settle();
            ++changes;
        } else if (random.one_in(150)) {
            window.reset();
            model = {slots, 0, {}};
        }
        REQUIRE(window.ack() == model.ack);
        REQUIRE(window.end() == model.ack + slots);
        const std::uint64_t next = random.one_in(10) ? ~std::uint64_t{0} : model.ack + random.below(slots + 3);
        Heartbeat heartbeat{};
        heartbeat.holes_used = random.one_in(4) ? LUWU_MOST_HOLES - 2 : 0;
        const std::uint32_t before = heartbeat.holes_used;
        window.report_holes(LUWU_STREAM_GRADIENTS, next, heartbeat);
        const auto runs = model.holes(next);
        REQUIRE(heartbeat.holes_used == std::min<std::uint64_t>(LUWU_MOST_HOLES, before + runs.size()));
        for (std::uint32_t i = before; i < heartbeat.holes_used; ++i) {
            REQUIRE(heartbeat.holes[i].stream == LUWU_STREAM_GRADIENTS);
            REQUIRE(heartbeat.holes[i].first == runs[i - before].first);
            REQUIRE(heartbeat.holes[i].length == runs[i - before].second);
        }
    }
    return changes;
}

struct SendModel {
    std::uint64_t slots;
    std::uint64_t next = 0;
    std::uint64_t ack = 0;
    std::uint64_t credit = 0;
    std::uint64_t resent = 0;
    std::deque<std::uint64_t> missing{};
    std::map<std::uint64_t, Time> sent_at{};
    Time moved_at = 0;
    Time patience = 0;
    std::uint64_t burst = 1;

    void take_state(std::uint64_t new_ack, std::uint64_t new_credit, Time now) {
        credit = std::max(credit, new_credit);
        if (new_ack <= ack || new_ack > next) return;
        ack = new_ack;
        moved_at = now;
        patience = 0;
        burst = 1;
        std::erase_if(missing, [this](std::uint64_t sequence) { return sequence < ack; });
    }
    std::uint64_t take_hole(std::uint64_t first, std::uint64_t length, Time now, Time min_age) {
        std::uint64_t found = 0;
        for (std::uint64_t at = std::max(first, ack); at < next && at - first < length; ++at) {
            if (std::count(missing.begin(), missing.end(), at) != 0 || sent_at[at] + min_age > now) continue;
            missing.push_back(at);
            ++found;
        }
        return found;
    }
    std::uint64_t resend(Time now, Time timeout, Time longest, std::uint64_t most) {
        if (next == ack) {
            moved_at = now;
            return 0;
        }
        patience = std::max(patience, timeout);
        if (now < moved_at + patience) return 0;
        moved_at = now;
        patience = std::min(2 * patience, longest);
        const std::uint64_t length = std::min(burst, most);
        burst *= 2;
        return take_hole(ack, length, now, timeout);
    }
    [[nodiscard]] bool may_send(std::uint64_t ready) const {
        return next < ready && next < credit && next < ack + slots;
    }
    std::optional<std::uint64_t> take(std::uint64_t ready, Time now) {
        if (!missing.empty()) {
            const std::uint64_t sequence = missing.front();
            missing.pop_front();
            sent_at[sequence] = now;
            ++resent;
            return sequence;
        }
        if (!may_send(ready)) return std::nullopt;
        if (next == ack) moved_at = now;
        sent_at[next] = now;
        return next++;
    }
};

std::uint64_t compare_senders(std::uint64_t seed) {
    constexpr Time kTimeout = 100;
    Random random(seed);
    const auto slots = static_cast<std::uint32_t>(1 + random.below(40));
    SendWindow window(slots);
    SendModel model{.slots = slots};
    Time now = 1'000;
    std::uint64_t stalls = 0;
    for (int call = 0; call < 400; ++call) {
        now += random.below(60);
        switch (random.below(8)) {
            case 0: {  // also acks that are old, or of what was never sent
                const std::uint64_t ack =
                    model.ack + random.below(model.next - model.ack + 3) - (model.ack > 0 ? 1 : 0);
                const std::uint64_t credit =
                    model.credit + random.below(2 * slots) - std::min<std::uint64_t>(model.credit, 3);
                window.take_state(ack, credit, now);
                model.take_state(ack, credit, now);
                break;
            }
            case 1: {
                const std::uint64_t first = model.ack + random.below(slots + 3) - std::min<std::uint64_t>(model.ack, 2);
                const auto length = static_cast<std::uint32_t>(random.one_in(5) ? ~0U : random.below(6));
                const Time age = random.below(150);
                REQUIRE(window.take_hole({first, length, 0}, now, age) == model.take_hole(first, length, now, age));
                break;
            }
            case 2: {
                const std::uint64_t found = model.resend(now, kTimeout, 350, 3);
                stalls += found;
                REQUIRE(window.resend_if_stalled(now, kTimeout, 350, 3) == found);
                break;
            }
            case 3:
                if (random.one_in(40)) {
                    window.reset();
                    model = {.slots = slots, .resent = model.resent};
                }
                break;
            default: {
                const std::uint64_t ready = model.next + random.below(4);
                REQUIRE(window.has_work(ready) == (!model.missing.empty() || model.may_send(ready)));
                const auto taken = window.take(ready, now);
                REQUIRE(taken == model.take(ready, now));
                if (taken) REQUIRE(*taken < model.credit);
            }
        }
        REQUIRE(window.next() == model.next);
        REQUIRE(window.ack() == model.ack);
        REQUIRE(window.resent() == model.resent);
        REQUIRE(window.outstanding() == (model.next > model.ack));
        REQUIRE(window.has_missing() == !model.missing.empty());
        REQUIRE(model.next - model.ack <= slots);
    }
    return stalls;
}

std::uint64_t runs() {
    const char* text = std::getenv("LUWU_PROPERTY_RUNS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 300;
}

}  // namespace

TEST_CASE("a receiver's window is what a list of everything that arrived would be") {
    std::uint64_t changes = 0;
    for (std::uint64_t seed = 0; seed < runs(); ++seed) {
        CAPTURE(seed);
        changes += compare_receivers(seed);
    }
    CHECK(changes > 20 * runs());
}

TEST_CASE("a sender's window is what a list of everything that was sent would be") {
    std::uint64_t stalls = 0;
    for (std::uint64_t seed = 0; seed < runs(); ++seed) {
        CAPTURE(seed);
        stalls += compare_senders(seed);
    }
    CHECK(stalls > runs());
}
