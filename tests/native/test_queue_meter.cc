#include <doctest/doctest.h>

#include "fabric/protocol/queue_meter.h"

using luwu::fabric::kMillisecond;
using luwu::fabric::QueueMeter;
using luwu::fabric::Time;

namespace {

constexpr Time kEmpty = 3 * kMillisecond - 77'000'000'000;  // the other clock is far behind

// Heartbeats every millisecond for a while, of which all wait so long, and every third a little longer.
Time after(QueueMeter& meter, Time& now, Time lasting, Time waiting) {
    for (const Time end = now + lasting; now < end; now += kMillisecond) {
        meter.observe(now, kEmpty + waiting + (now / kMillisecond % 3 == 0 ? 2 * kMillisecond : 0));
    }
    return meter.wait();
}

}  // namespace

TEST_CASE("what all packets of a moment wait beyond an empty way is a queue") {
    QueueMeter meter;
    Time now = 5'000 * kMillisecond;
    CHECK(meter.wait() == 0);
    CHECK(after(meter, now, 50 * kMillisecond, 0) == 0);
    CHECK(after(meter, now, 20 * kMillisecond, 6 * kMillisecond) == 6 * kMillisecond);
    CHECK(after(meter, now, 20 * kMillisecond, 40 * kMillisecond) == 40 * kMillisecond);
    CHECK(after(meter, now, 20 * kMillisecond, 0) == 0);
}

TEST_CASE("an empty way is remembered for a while, and measured anew when clocks drift or the other end is another") {
    QueueMeter meter;
    Time now = 5'000 * kMillisecond;
    after(meter, now, 50 * kMillisecond, 0);
    CHECK(after(meter, now, 14'000 * kMillisecond, 9 * kMillisecond) == 9 * kMillisecond);
    CHECK(after(meter, now, 40'000 * kMillisecond, 9 * kMillisecond) == 0);
    CHECK(after(meter, now, 20 * kMillisecond, 9'000 * kMillisecond) == 0);
    CHECK(after(meter, now, 20 * kMillisecond, 9'003 * kMillisecond) == 3 * kMillisecond);
}
