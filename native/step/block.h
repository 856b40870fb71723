// The stages of a block within an attempt at a step, and what the block still owes the step before.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "step/transition.h"

namespace luwu::step {

enum class BlockStage : std::uint8_t {
    collecting,            // some of its gradients have not come
    returned,              // all came after the attempt was given up: nothing is done with them
    waiting_to_keep,       // all came; memory still needs the kept gradient of the step before
    keeping,               // their sum is being kept
    kept,                  // it waits for the global norm
    waiting_to_update,     // all came; the record of the step before is not on the disk yet
    updating,              // until memory holds the version after the committed one
    writing,               // memory holds it, the disk does not
    updated,               // memory and disk hold it
    keeping_and_updating,  // both at once: clipping speculates
    kept_and_updating,     // the kept gradient is in its place, the update is not in memory
    keeping_and_writing,   // the update is in memory, its records and the kept gradient are not in their places
    kept_and_writing,
    keeping_and_updated,  // every record is in its place, the kept gradient is not
    kept_and_updated,
};
inline constexpr std::size_t kBlockStages = 15;

enum class BlockEvent : std::uint8_t {
    give_back,       // its gradients will not be needed
    wait_to_keep,    // the kept gradient of the step before is in the way
    wait_to_update,  // the record of the step before is in the way
    keep,            // keeping its gradients begins
    update,          // its update begins
    speculate,       // both begin
    kept,            // the sum is where it stays until the update
    in_memory,       // memory holds its update
    written,         // its last record is written
    end,             // the attempt is over
};
inline constexpr std::size_t kBlockEvents = 10;

using BlockTransition = Transition<BlockStage, BlockEvent>;

// Every transition there is. An event that a stage has no row for cannot happen.
inline constexpr std::array kBlockTransitions{
    BlockTransition{BlockStage::collecting, BlockEvent::give_back, BlockStage::returned},
    BlockTransition{BlockStage::collecting, BlockEvent::wait_to_keep, BlockStage::waiting_to_keep},
    BlockTransition{BlockStage::collecting, BlockEvent::wait_to_update, BlockStage::waiting_to_update},
    BlockTransition{BlockStage::collecting, BlockEvent::keep, BlockStage::keeping},
    BlockTransition{BlockStage::collecting, BlockEvent::update, BlockStage::updating},
    BlockTransition{BlockStage::collecting, BlockEvent::speculate, BlockStage::keeping_and_updating},
    BlockTransition{BlockStage::collecting, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::returned, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::waiting_to_keep, BlockEvent::keep, BlockStage::keeping},
    BlockTransition{BlockStage::keeping, BlockEvent::kept, BlockStage::kept},
    BlockTransition{BlockStage::kept, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::waiting_to_update, BlockEvent::update, BlockStage::updating},
    BlockTransition{BlockStage::waiting_to_update, BlockEvent::speculate, BlockStage::keeping_and_updating},
    BlockTransition{BlockStage::updating, BlockEvent::in_memory, BlockStage::writing},
    BlockTransition{BlockStage::writing, BlockEvent::written, BlockStage::updated},
    BlockTransition{BlockStage::writing, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::updated, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::keeping_and_updating, BlockEvent::kept, BlockStage::kept_and_updating},
    BlockTransition{BlockStage::keeping_and_updating, BlockEvent::in_memory, BlockStage::keeping_and_writing},
    BlockTransition{BlockStage::kept_and_updating, BlockEvent::in_memory, BlockStage::kept_and_writing},
    BlockTransition{BlockStage::keeping_and_writing, BlockEvent::kept, BlockStage::kept_and_writing},
    BlockTransition{BlockStage::keeping_and_writing, BlockEvent::written, BlockStage::keeping_and_updated},
    BlockTransition{BlockStage::kept_and_writing, BlockEvent::written, BlockStage::kept_and_updated},
    BlockTransition{BlockStage::kept_and_writing, BlockEvent::end, BlockStage::collecting},
    BlockTransition{BlockStage::keeping_and_updated, BlockEvent::kept, BlockStage::kept_and_updated},
    BlockTransition{BlockStage::kept_and_updated, BlockEvent::end, BlockStage::collecting},
};

[[nodiscard]] constexpr std::optional<BlockStage> next_block_stage(BlockStage stage, BlockEvent event) {
    return next_in(kBlockTransitions, stage, event);
}

// It is not known yet whether the block's gradient is finite, or the gradient is not where it stays.
[[nodiscard]] constexpr bool is_undecided(BlockStage stage) {
    return stage == BlockStage::waiting_to_keep || stage == BlockStage::keeping ||
           stage == BlockStage::waiting_to_update || stage == BlockStage::updating ||
           stage == BlockStage::keeping_and_updating || stage == BlockStage::kept_and_updating ||
           stage == BlockStage::keeping_and_writing || stage == BlockStage::keeping_and_updated;
}
[[nodiscard]] constexpr bool is_being_updated(BlockStage stage) {
    return stage == BlockStage::updating || stage == BlockStage::keeping_and_updating ||
           stage == BlockStage::kept_and_updating;
}
[[nodiscard]] constexpr bool is_being_written(BlockStage stage) {
    return stage == BlockStage::writing || stage == BlockStage::keeping_and_writing ||
           stage == BlockStage::kept_and_writing;
}
[[nodiscard]] constexpr bool is_kept(BlockStage stage) {
    return stage == BlockStage::kept || stage == BlockStage::kept_and_updating ||
           stage == BlockStage::kept_and_writing || stage == BlockStage::kept_and_updated;
}
// The block's gradient is kept, or waits for that, and its update follows the decision.
[[nodiscard]] constexpr bool is_updated_later(BlockStage stage) {
    return stage == BlockStage::waiting_to_keep || stage == BlockStage::keeping || stage == BlockStage::kept;
}
// Memory holds the version after the committed one.
[[nodiscard]] constexpr bool is_updated(BlockStage stage) {
    return is_being_written(stage) || stage == BlockStage::updated || stage == BlockStage::keeping_and_updated ||
           stage == BlockStage::kept_and_updated;
}

// Debt of a block to the step before, which was answered before the block was updated, or before it was written.
enum class Debt : std::uint8_t {
    none,
    update,  // memory does not hold the answered version: nobody may see the block
    record,  // memory does, the disk does not
};

struct Block {
    BlockStage stage = BlockStage::collecting;
    Debt debt = Debt::none;
    std::uint32_t arrived = 0;  // gradients of this attempt; those that came after it was given up do not count
    std::vector<bool> came;     // per stream: its gradient of this attempt
    double squares = 0;         // of its kept gradient

    [[nodiscard]] bool owes() const { return debt != Debt::none; }
    [[nodiscard]] bool stale() const { return debt == Debt::update; }
};

}  // namespace luwu::step
