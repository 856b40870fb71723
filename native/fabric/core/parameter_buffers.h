// A worker's own memory for parameters, where the server's is out of reach: each held block has a place of its own, the
// others take turns in slots. A block is fetched when it is pulled and forgotten when it is released.
//
// Large blocks, twice the median and more, for which the plan has places of their own take turns in one place of the
// largest one's size, so that the largest block sets the memory and not their sum. Two of them may be held at once: the
// second is fetched to a place of its own, whose memory is given back when it is released. No
// thread waits for that one place, so a deadlock is impossible. Memory that a device copies from cannot be given back:
// there each has its own place alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "fabric/core/shared_memory.h"
#include "schedule/residency.h"

namespace luwu::fabric {

class ParameterBuffers {
  public:
    using Reply = std::function<void(bool ok, std::int64_t offset)>;
    // Fetches a block's parameters into its place and calls fetched() then, from any thread. Must not wait.
    using Fetch = std::function<void(std::uint32_t block, bool alone, std::span<std::byte> into)>;

    // `plan`: of one worker's memory (schedule::plan_minimum); `held` and `parameter_bytes` (without padding) per
    // block; `mode`: how an endpoint maps the window, shared where a device copies from it.
    ParameterBuffers(const schedule::ResidencyPlan& plan, const std::vector<bool>& held,
                     std::vector<std::uint64_t> parameter_bytes, MapMode mode, Fetch fetch);

    // Never waits: the reply comes at once for a block that is held, else when it was fetched, for which it may have to
    // wait for a slot. A block that is held is not fetched again. Blocks are fetched in the order of their pulls, so
    // that workers who pull the same fetch the same; what one pulls `alone` is told to Fetch.
    void pull(std::uint32_t block, bool alone, Reply reply);
    [[nodiscard]] bool release(std::uint32_t block);  // false: it was not held
    void fetched(std::uint32_t block, bool ok);
    void fail();  // replies to whoever waits
    [[nodiscard]] int descriptor() const { return file_.descriptor(); }

  private:
    struct Block {
        bool turning = false;                 // in slots
        std::uint64_t own_offset = 0;         // of its own place, if it is not turning
        std::optional<std::uint64_t> offset;  // where it lies or is being fetched to
        bool alone = false;
        std::uint32_t slot = 0;
        std::uint32_t holds = 0;
        std::vector<Reply> waiting;
    };

    [[nodiscard]] std::vector<std::uint32_t> place_waiting();  // with the mutex held
    void place(std::uint32_t block);                           // there is a slot for it, if it is turning
    void give_back_place(std::uint32_t block);
    void fetch(const std::vector<std::uint32_t>& blocks);

    std::uint64_t slots_offset_;
    std::uint64_t slot_bytes_;
    std::uint64_t common_offset_;  // of the place in which large blocks take turns
    std::vector<std::uint64_t> parameter_bytes_;
    std::vector<bool> large_;
    Fetch fetch_;
    MemoryFile file_;
    Mapping memory_;
    std::mutex mutex_;
    std::vector<Block> blocks_;
    std::vector<std::uint32_t> free_slots_;
    bool common_free_ = true;
    std::deque<std::uint32_t> queue_;  // blocks that wait for a slot
    bool failed_ = false;
};

}  // namespace luwu::fabric
