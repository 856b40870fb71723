// The kernel's answers to io_uring: it takes fewer requests, none for now, or none any more; a transfer was short or
// interrupted. Answers are scripted where the kernel gives them too rarely.
#include <doctest/doctest.h>

#include "store/io_engine.h"

#if LUWU_HAVE_URING

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>

#include "support.h"

using namespace luwu;
using store::IoEngine;
using store::IoRequest;

namespace {

constexpr std::uint32_t kDepth = 8;
constexpr std::size_t kBytes = 4096;

std::deque<int> answers;        // to the next submissions: an error, or the most requests that the kernel gets
std::deque<int> interruptions;  // results of the next requests, which are not carried out

unsigned last_index(const io_uring* ring) { return (ring->sq.sqe_tail - 1) & *ring->sq.kring_mask; }

// Makes a request that does nothing and completes with `result`; needs Linux 6.10.
void complete_with(io_uring_sqe& entry, int result) {
    constexpr unsigned inject_result = 1;
    const auto request = entry.user_data;
    io_uring_prep_nop(&entry);
    entry.rw_flags = inject_result;
    entry.len = static_cast<unsigned>(result);
    entry.user_data = request;
}

int submit(io_uring* ring) {
    if (!interruptions.empty()) {
        complete_with(ring->sq.sqes[last_index(ring)], interruptions.front());
        interruptions.pop_front();
    }
    if (answers.empty()) return io_uring_submit(ring);
    const int answer = answers.front();
    answers.pop_front();
    if (answer < 0) return answer;
    const unsigned ready = io_uring_sq_ready(ring);
    const unsigned held = ready - std::min(ready, static_cast<unsigned>(answer));
    ring->sq.sqe_tail -= held;
    const int taken = io_uring_submit(ring);
    ring->sq.sqe_tail += held;
    return taken;
}

bool kernel_injects_results() {
    io_uring ring{};
    if (io_uring_queue_init(1, &ring, 0) != 0) return false;
    complete_with(*io_uring_get_sqe(&ring), -EINTR);
    io_uring_submit(&ring);
    io_uring_cqe* entry = nullptr;
    const bool known = io_uring_wait_cqe(&ring, &entry) == 0 && entry->res == -EINTR;
    io_uring_queue_exit(&ring);
    return known;
}

// A file whose n-th block of 4096 bytes has the value n, and a read of each block.
struct Reads {
    explicit Reads(std::size_t count) : requests(count), buffers(count, std::vector<unsigned char>(kBytes)) {
        const std::string path = scratch.folder() + "/numbers";
        file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        for (std::size_t n = 0; n < count; ++n) {
            const std::vector<unsigned char> block(kBytes, static_cast<unsigned char>(n));
            REQUIRE(write(file, block.data(), kBytes) == static_cast<ssize_t>(kBytes));
            requests[n].file = file;
            requests[n].offset = n * kBytes;
            requests[n].add_part(buffers[n].data(), kBytes);
        }
    }
    ~Reads() { close(file); }
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;

    [[nodiscard]] bool right(std::size_t n) const {
        return requests[n].error == 0 &&
               std::all_of(buffers[n].begin(), buffers[n].end(), [n](unsigned char byte) { return byte == n; });
    }

    test::Scratch scratch;
    int file = -1;
    std::vector<IoRequest> requests;
    std::vector<std::vector<unsigned char>> buffers;
};

std::unique_ptr<IoEngine> make_engine() {
    answers.clear();
    interruptions.clear();
    auto engine = store::make_uring_io_engine(kDepth, submit);
    if (engine == nullptr) MESSAGE("SKIPPED: this kernel refuses io_uring");
    return engine;
}

// Runs all requests, and checks that each completes once, in any order.
void run(IoEngine& engine, std::vector<IoRequest>& requests) {
    for (IoRequest& request : requests) engine.submit(request);
    std::vector<IoRequest*> completed;
    while (completed.size() < requests.size()) engine.wait(completed);
    std::sort(completed.begin(), completed.end());
    for (std::size_t n = 0; n < requests.size(); ++n) REQUIRE(completed[n] == &requests[n]);
}

}  // namespace

TEST_CASE("a submission that is interrupted, refused for now, or short is made again") {
    const auto engine = make_engine();
    if (engine == nullptr) return;
    SUBCASE("interrupted") { answers = {-EINTR, -EINTR}; }
    SUBCASE("no memory for it") { answers.assign(12, -EAGAIN); }
    SUBCASE("the ring of completions is full") { answers.assign(9, -EBUSY); }
    SUBCASE("nothing is taken") { answers.assign(9, 0); }
    SUBCASE("few at a time, after none at all") {
        answers.assign(kDepth, -EAGAIN);
        answers.insert(answers.end(), {1, 3, 0, -EINTR, 2});
    }
    Reads reads(kDepth);
    run(*engine, reads.requests);
    CHECK(answers.empty());
    for (std::size_t n = 0; n < kDepth; ++n) CHECK(reads.right(n));
}

TEST_CASE("a ring that refuses for good fails what it has not taken, and what comes later, with its error") {
    const auto engine = make_engine();
    if (engine == nullptr) return;
    Reads reads(4);
    std::vector<IoRequest*> completed;
    engine->submit(reads.requests[0]);
    while (completed.empty()) engine->wait(completed);
    answers = {-EAGAIN, -EAGAIN, -ENXIO};
    for (std::size_t n = 1; n < 4; ++n) engine->submit(reads.requests[n]);
    while (completed.size() < 4) engine->wait(completed);
    CHECK(reads.right(0));
    for (std::size_t n = 1; n < 4; ++n) CHECK(reads.requests[n].error == ENXIO);
    reads.requests[1].error = 0;
    engine->submit(reads.requests[1]);
    completed.clear();
    engine->wait(completed);
    REQUIRE(completed.size() == 1);
    CHECK(completed[0]->error == ENXIO);
    std::thread waiter([&engine, &completed] { engine->wait(completed); });  // wake() still ends a wait
    engine->wake();
    waiter.join();
    CHECK(completed.size() == 1);
}

TEST_CASE("a transfer that was interrupted, cancelled or short goes on where it stopped") {
    const auto engine = make_engine();
    if (engine == nullptr) return;
    SUBCASE("interrupted or cancelled") {
        if (!kernel_injects_results()) {
            MESSAGE("SKIPPED: this kernel completes no request with what a test says");
            return;
        }
        Reads reads(3);
        interruptions = {-EINTR, -EAGAIN, -ECANCELED, -EINTR};
        run(*engine, reads.requests);
        CHECK(interruptions.empty());
        for (std::size_t n = 0; n < 3; ++n) CHECK(reads.right(n));
    }
    SUBCASE("short") {
        std::array<int, 2> ends{};
        REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
        std::string text(6, '?');
        std::vector<IoRequest> requests(1);
        requests[0].file = ends[0];
        requests[0].add_part(text.data(), 4);
        requests[0].add_part(text.data() + 4, 2);
        REQUIRE(write(ends[1], "abc", 3) == 3);
        engine->submit(requests[0]);
        std::thread writer([&ends] { CHECK(write(ends[1], "def", 3) == 3); });
        std::vector<IoRequest*> completed;
        while (completed.empty()) engine->wait(completed);
        writer.join();
        CHECK(requests[0].error == 0);
        CHECK(text == "abcdef");
        close(ends[0]);
        close(ends[1]);
    }
    SUBCASE("at the end of the file") {
        Reads reads(1);
        reads.requests[0].offset = kBytes / 2;
        run(*engine, reads.requests);
        CHECK(reads.requests[0].error == EIO);
    }
}

#endif
