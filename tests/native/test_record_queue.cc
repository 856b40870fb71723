// Order in which records of a commit point are written, copied and changed.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "schedule/record_queue.h"

using luwu::schedule::RecordQueue;
using Answer = RecordQueue::Answer;

namespace {

RecordQueue filled(std::uint32_t chunks, std::uint32_t at_once, std::uint32_t buffers) {
    RecordQueue queue(chunks, at_once, buffers);
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) queue.add(chunk);
    return queue;
}

}  // namespace

TEST_CASE("records are written in the order in which they came, so many at a time") {
    RecordQueue queue = filled(3, 2, 0);
    CHECK(queue.next_write() == 0);
    CHECK(queue.next_write() == 1);
    CHECK_FALSE(queue.next_write().has_value());
    CHECK_FALSE(queue.written(1));
    CHECK(queue.next_write() == 2);
    CHECK_FALSE(queue.written(0));
    CHECK_FALSE(queue.empty());
    CHECK_FALSE(queue.written(2));
    CHECK(queue.empty());
}

TEST_CASE("a chunk is changed at once where nothing needs its record") {
    RecordQueue queue(2, 1, 0);
    CHECK(queue.want(0) == Answer::change);
    queue.add(0);
    CHECK(queue.next_write() == 0);
    CHECK_FALSE(queue.written(0));
    CHECK(queue.want(0) == Answer::change);
}

TEST_CASE("without a buffer an update waits for the write, which comes before others") {
    RecordQueue queue = filled(3, 1, 0);
    CHECK(queue.next_write() == 0);
    CHECK(queue.want(0) == Answer::wait);  // under way
    CHECK(queue.want(2) == Answer::wait);
    CHECK_FALSE(queue.next_copy().has_value());
    CHECK(queue.written(0));
    CHECK(queue.next_write() == 2);
    CHECK(queue.written(2));
    CHECK(queue.next_write() == 1);
    CHECK_FALSE(queue.written(1));
}

TEST_CASE("with a buffer the record is copied, the chunk changes, and the copy is written last") {
    RecordQueue queue = filled(3, 1, 1);
    CHECK(queue.next_write() == 0);
    CHECK(queue.want(1) == Answer::copy);
    CHECK(queue.buffer(1) == 0);
    CHECK(queue.want(2) == Answer::wait);  // the only buffer is taken
    queue.copied(1);
    CHECK(queue.want(1) == Answer::change);  // by the update of a later step, too
    CHECK_FALSE(queue.written(0));
    CHECK(queue.next_write() == 2);
    CHECK(queue.written(2));
    CHECK(queue.next_write() == 1);
    CHECK(queue.buffer(1) == 0);
    CHECK(queue.want(1) == Answer::change);  // while it is written
    CHECK_FALSE(queue.written(1));
    CHECK_FALSE(queue.buffer(1).has_value());
    CHECK(queue.empty());
}

TEST_CASE("a buffer that becomes free serves the update that has waited longest") {
    RecordQueue queue = filled(4, 1, 1);
    CHECK(queue.want(0) == Answer::copy);
    queue.copied(0);
    CHECK(queue.next_write() == 1);
    CHECK(queue.want(3) == Answer::wait);
    CHECK(queue.want(2) == Answer::wait);
    CHECK_FALSE(queue.written(1));
    CHECK_FALSE(queue.next_copy().has_value());
    CHECK(queue.next_write() == 3);
    CHECK(queue.written(3));
    CHECK(queue.next_write() == 2);
    CHECK(queue.written(2));
    CHECK(queue.next_write() == 0);
    queue.add(1);
    queue.add(2);
    CHECK(queue.want(2) == Answer::wait);
    CHECK_FALSE(queue.written(0));
    CHECK(queue.next_copy() == 2);
    queue.copied(2);
    CHECK(queue.next_write() == 1);
    CHECK_FALSE(queue.written(1));
    CHECK(queue.next_write() == 2);
    CHECK_FALSE(queue.written(2));
    CHECK(queue.empty());
}

// Memory and disk as numbers: an update adds one to a chunk's record, and what reaches the disk must be what was added.
TEST_CASE("in random orders every record reaches the disk as it was added, and every update comes") {
    for (std::uint32_t seed = 0; seed < 2000; ++seed) {
        std::mt19937 dice(seed);
        const auto below = [&dice](std::uint32_t end) { return static_cast<std::uint32_t>(dice() % end); };
        const std::uint32_t chunks = 1 + below(6);
        const std::uint32_t at_once = 1 + below(3);
        const std::uint32_t buffers = below(4);
        RecordQueue queue(chunks, at_once, buffers);
        std::vector<std::uint32_t> memory(chunks, 0), disk(chunks, 0), copies(buffers, 0);
        std::vector<std::uint32_t> writes, copying, waiting;
        for (std::uint32_t round = 1; round <= 3; ++round) {
            for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) queue.add(chunk);
            std::vector<std::uint32_t> to_update(chunks);
            for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) to_update[chunk] = chunk;
            std::shuffle(to_update.begin(), to_update.end(), dice);
            const auto take = [&](std::vector<std::uint32_t>& from) {
                const auto at = from.begin() + below(static_cast<std::uint32_t>(from.size()));
                const std::uint32_t chunk = *at;
                from.erase(at);
                return chunk;
            };
            while (!queue.empty() || !to_update.empty() || !copying.empty()) {
                while (const auto chunk = queue.next_write()) writes.push_back(*chunk);
                CHECK(writes.size() <= at_once);
                const std::uint32_t what = below(3);
                if (what == 0 && !to_update.empty()) {
                    const std::uint32_t chunk = to_update.back();
                    to_update.pop_back();
                    const Answer answer = queue.want(chunk);
                    if (answer == Answer::change) ++memory[chunk];
                    if (answer == Answer::copy) copying.push_back(chunk);
                    if (answer == Answer::wait) waiting.push_back(chunk);
                } else if (what == 1 && !copying.empty()) {
                    const std::uint32_t chunk = take(copying);
                    copies[queue.buffer(chunk).value()] = memory[chunk]++;
                    queue.copied(chunk);
                } else if (what == 2 && !writes.empty()) {
                    const std::uint32_t chunk = take(writes);
                    const auto buffer = queue.buffer(chunk);
                    disk[chunk] = buffer ? copies[*buffer] : memory[chunk];
                    if (queue.written(chunk)) {
                        ++memory[chunk];
                        CHECK(std::erase(waiting, chunk) == 1);
                    }
                    while (const auto next = queue.next_copy()) {
                        copying.push_back(*next);
                        CHECK(std::erase(waiting, *next) == 1);
                    }
                }
            }
            CHECK(waiting.empty());
            CHECK(memory == std::vector<std::uint32_t>(chunks, round));
            CHECK(disk == std::vector<std::uint32_t>(chunks, round - 1));
        }
    }
}
