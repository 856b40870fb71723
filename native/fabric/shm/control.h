// The control memory of the shared-memory fabric: one failure notice, and two rings of requests per worker.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "fabric/core/stream.h"
#include "pipeline/pipeline.h"

namespace luwu::fabric {

inline constexpr std::uint64_t kControlMagic = 0x344C544355575554;  // "TUWUCTL4" in memory
inline constexpr std::uint32_t kRingRequests = 256;
inline constexpr std::uint32_t kMaximumGroups = 64;

enum class RequestKind : std::uint32_t { begin, pull, release, push, vote, initialise, finish_initialise };
enum class RequestState : std::uint32_t { idle, posted, done, failed };

// Written by the worker until it is posted, then by the server until it is done.
struct alignas(64) Request {
    std::atomic<std::uint32_t> state{0};  // RequestState; futex word
    RequestKind kind = RequestKind::begin;
    std::uint64_t sequence = 0;  // of the stream, from 1
    std::uint32_t block = 0;
    std::uint32_t flag = 0;       // vote: roll back; pull: alone
    std::uint64_t argument = 0;   // push, initialise: offset in the worker's arena
    std::int64_t result = 0;      // begin: twice the most records of a trace, and 1 if it is the last attempt of it
    std::uint64_t posted_ns = 0;  // CLOCK_MONOTONIC
    std::uint64_t done_ns = 0;
    double squares = pipeline::kNoSquares;  // vote: as pipeline::Outcome has it
};
static_assert(sizeof(Request) == 64);

struct RequestRing {
    std::array<Request, kRingRequests> requests;
};

struct WorkerArea {
    std::array<RequestRing, 2> rings;  // by Stream
    std::uint32_t group_count = 0;
    std::array<pipeline::GroupSettings, kMaximumGroups> groups;  // of the step that begins
    double max_norm = 0;                                         // and its limit; 0: none
    double loss_scale = 0;                                       // 0: none
    std::uint64_t good_steps = 0;                                // see store::LossScale
};

struct ControlArea {
    std::uint64_t magic = kControlMagic;
    std::uint32_t workers = 0;
    std::uint32_t blocks = 0;
    std::uint64_t gradient_bytes = 0;  // of an arena, for gradients; first values may take more
    alignas(64) std::array<std::atomic<std::uint32_t>, 2> doorbells;  // by Stream; futex words
    alignas(64) std::atomic<std::uint32_t> failed{0};                 // 0, or 1 + ErrorKind once failure_text is there
    std::array<char, 1024> failure_text{};
};

// Control memory: ControlArea, then the blocks' bytes, then one WorkerArea each, on cache lines.
[[nodiscard]] std::uint64_t control_bytes(std::uint32_t workers, std::uint32_t blocks);
[[nodiscard]] std::uint64_t* block_bytes_table(ControlArea& control);
[[nodiscard]] WorkerArea& worker_area(ControlArea& control, std::uint32_t rank);

// Sleeps until the word differs from `seen`, a wake-up, or the time is over.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds at_most);
void futex_wake(const std::atomic<std::uint32_t>& word);

}  // namespace luwu::fabric
