// The phases of a block within an attempt at a step, and what the block still owes the step before.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "step/transition.h"

namespace luwu::step {

enum class Phase : std::uint8_t {
    collecting,            // some of its gradients have not come
    returned,              // all came after the attempt was given up: nothing is done with them
    waiting_to_keep,       // all came; the kept gradient of the step before is still needed
    keeping,               // their sum is being kept
    kept,                  // it waits for the global norm
    waiting_to_update,     // all came; the record of the step before is not on the disk yet
    updating,              // from its first update until its last record is on the disk
    updated,               // memory and disk hold the version after the committed one
    keeping_and_updating,  // both at once: clipping speculates
    kept_and_updating,     // the kept gradient is in its place, some record is not
    keeping_and_updated,   // every record is in its place, the kept gradient is not
    kept_and_updated,
};
inline constexpr std::size_t kPhases = 12;

enum class BlockEvent : std::uint8_t {
    give_back,       // its gradients will not be needed
    wait_to_keep,    // the kept gradient of the step before is in the way
    wait_to_update,  // the record of the step before is in the way
    keep,            // keeping its gradients begins
    update,          // its update begins
    speculate,       // both begin
    kept,            // the sum is where it stays until the update
    updated,         // its last record is written
    end,             // the attempt is over
};
inline constexpr std::size_t kBlockEvents = 9;

using BlockTransition = Transition<Phase, BlockEvent>;

// Every transition there is. An event that a phase has no row for cannot happen.
inline constexpr std::array kTransitions{
    BlockTransition{Phase::collecting, BlockEvent::give_back, Phase::returned},
    BlockTransition{Phase::collecting, BlockEvent::wait_to_keep, Phase::waiting_to_keep},
    BlockTransition{Phase::collecting, BlockEvent::wait_to_update, Phase::waiting_to_update},
    BlockTransition{Phase::collecting, BlockEvent::keep, Phase::keeping},
    BlockTransition{Phase::collecting, BlockEvent::update, Phase::updating},
    BlockTransition{Phase::collecting, BlockEvent::speculate, Phase::keeping_and_updating},
    BlockTransition{Phase::collecting, BlockEvent::end, Phase::collecting},
    BlockTransition{Phase::returned, BlockEvent::end, Phase::collecting},
    BlockTransition{Phase::waiting_to_keep, BlockEvent::keep, Phase::keeping},
    BlockTransition{Phase::keeping, BlockEvent::kept, Phase::kept},
    BlockTransition{Phase::kept, BlockEvent::end, Phase::collecting},
    BlockTransition{Phase::waiting_to_update, BlockEvent::speculate, Phase::keeping_and_updating},
    BlockTransition{Phase::updating, BlockEvent::updated, Phase::updated},
    BlockTransition{Phase::updated, BlockEvent::end, Phase::collecting},
    BlockTransition{Phase::keeping_and_updating, BlockEvent::kept, Phase::kept_and_updating},
    BlockTransition{Phase::keeping_and_updating, BlockEvent::updated, Phase::keeping_and_updated},
    BlockTransition{Phase::kept_and_updating, BlockEvent::updated, Phase::kept_and_updated},
    BlockTransition{Phase::keeping_and_updated, BlockEvent::kept, Phase::kept_and_updated},
    BlockTransition{Phase::kept_and_updated, BlockEvent::end, Phase::collecting},
};

[[nodiscard]] constexpr std::optional<Phase> next_phase(Phase phase, BlockEvent event) {
    return next_in(kTransitions, phase, event);
}

// The end of the attempt waits for the block.
[[nodiscard]] constexpr bool holds_up(Phase phase) {
    return phase == Phase::waiting_to_keep || phase == Phase::keeping || phase == Phase::waiting_to_update ||
           phase == Phase::updating || phase == Phase::keeping_and_updating || phase == Phase::kept_and_updating ||
           phase == Phase::keeping_and_updated;
}
[[nodiscard]] constexpr bool is_kept(Phase phase) {
    return phase == Phase::kept || phase == Phase::kept_and_updating || phase == Phase::kept_and_updated;
}
[[nodiscard]] constexpr bool is_updated(Phase phase) {
    return phase == Phase::updated || phase == Phase::keeping_and_updated || phase == Phase::kept_and_updated;
}

// Debt of a block to the step before, which was answered when its norm was known and not updated then.
enum class Debt : std::uint8_t {
    none,
    update,  // memory does not hold the answered version: nobody may see the block
    record,  // memory does, the disk does not
};

struct Block {
    Phase phase = Phase::collecting;
    Debt debt = Debt::none;
    std::uint32_t arrived = 0;  // gradients of this attempt; those that came after it was given up do not count
    std::vector<bool> came;     // per stream: its gradient of this attempt
    double squares = 0;         // of its kept gradient

    [[nodiscard]] bool owes() const { return debt != Debt::none; }
    [[nodiscard]] bool stale() const { return debt == Debt::update; }
};

}  // namespace luwu::step
