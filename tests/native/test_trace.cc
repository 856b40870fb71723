// The recorder of a run's spans, and the attempts that are recorded.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "trace/attempts.h"
#include "trace/recorder.h"

using namespace luwu::trace;

namespace {

Record record_of(std::uint32_t block) { return {.begin_ns = 1, .end_ns = 2, .block = block}; }

}  // namespace

TEST_CASE("a recorder that is off records nothing, and forgets a span that began while it was off") {
    Recorder recorder;
    CHECK(recorder.begin() == 0);
    recorder.add(record_of(1));
    const Record early{.begin_ns = recorder.begin(), .block = 2};
    recorder.start(4);
    CHECK(recorder.begin() > 0);
    recorder.end(early);
    CHECK(recorder.stop().count == 0);
}

TEST_CASE("a recorder keeps the first spans, counts those that find no room, and begins anew") {
    Recorder recorder;
    recorder.start(2);
    for (const std::uint32_t block : {7U, 8U, 9U}) recorder.add(record_of(block));
    const Recorded recorded = recorder.stop();
    REQUIRE(recorded.records().size() == 2);
    CHECK(recorded.records()[0].block == 7);
    CHECK(recorded.records()[1].block == 8);
    CHECK(recorded.dropped == 1);
    recorder.start(2);
    recorder.add(record_of(1));
    CHECK(recorder.stop().count == 1);
}

TEST_CASE("a span ends after it began") {
    Recorder recorder;
    recorder.start(1);
    recorder.end({.begin_ns = recorder.begin(), .kind = Kind::update});
    const Recorded recorded = recorder.stop();
    REQUIRE(recorded.count == 1);
    CHECK(recorded.records()[0].kind == Kind::update);
    CHECK(recorded.records()[0].end_ns >= recorded.records()[0].begin_ns);
}

TEST_CASE("threads record while another starts and stops: every span that counts is whole") {
    Recorder recorder;
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (std::uint32_t thread = 1; thread <= 3; ++thread) {
        threads.emplace_back([&, thread] {
            while (!over) recorder.add({.begin_ns = thread, .end_ns = thread, .bytes = thread, .block = thread});
        });
    }
    std::uint64_t found = 0;
    while (found < 2000) {
        recorder.start(64);
        std::this_thread::yield();
        const Recorded recorded = recorder.stop();
        found += recorded.count;
        for (const Record& record : recorded.records()) {
            CHECK(record.begin_ns == record.block);
            CHECK(record.bytes == record.block);
        }
    }
    over = true;
    for (std::thread& thread : threads) thread.join();
}

TEST_CASE("attempts are traced as many as were asked for, and what the last of them owes") {
    Attempts attempts;
    CHECK(attempts.begin_attempt(4) == Attempts::Change::none);
    CHECK_FALSE(attempts.within());
    attempts.ask(2);
    CHECK(attempts.asked());
    CHECK_FALSE(attempts.within());
    CHECK(attempts.begin_attempt(5) == Attempts::Change::start);
    CHECK(attempts.within());
    CHECK_FALSE(attempts.last());
    CHECK(attempts.begin_attempt(5) == Attempts::Change::none);  // again, after a roll-back
    CHECK(attempts.last());
    CHECK(attempts.complete());
    CHECK(attempts.begin_attempt(6) == Attempts::Change::none);
    CHECK_FALSE(attempts.within());
    CHECK(attempts.asked());
    CHECK(attempts.begin_attempt(7) == Attempts::Change::stop);
    CHECK_FALSE(attempts.asked());
    CHECK(attempts.first_step() == 5);
    CHECK(attempts.last_step() == 5);
    CHECK(attempts.begin_attempt(8) == Attempts::Change::none);
}

TEST_CASE("the attempt under way is the last when no more are taken") {
    Attempts attempts;
    attempts.ask(9);
    CHECK(attempts.begin_attempt(3) == Attempts::Change::start);
    CHECK_FALSE(attempts.last());
    attempts.take_no_more();
    CHECK(attempts.last());
    CHECK(attempts.complete());
    CHECK(attempts.begin_attempt(4) == Attempts::Change::none);
    CHECK(attempts.begin_attempt(5) == Attempts::Change::stop);
    CHECK(attempts.last_step() == 3);
}

TEST_CASE("tracing that is ended begins anew") {
    Attempts attempts;
    attempts.ask(3);
    CHECK_FALSE(attempts.end());  // nothing was recorded
    CHECK(attempts.begin_attempt(1) == Attempts::Change::none);
    attempts.ask(1);
    CHECK(attempts.begin_attempt(2) == Attempts::Change::start);
    CHECK(attempts.end());
    CHECK(attempts.begin_attempt(3) == Attempts::Change::none);
    attempts.ask(1);
    CHECK(attempts.begin_attempt(4) == Attempts::Change::start);
    CHECK(attempts.first_step() == 4);
}
