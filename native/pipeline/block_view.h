// The server's work with each block at a moment, for people who look at a run.
#pragma once

#include <cstdint>

#include "schedule/window_cache.h"
#include "step/block.h"

namespace luwu::pipeline {

// In the order in which a block goes through them within a step.
enum class BlockView : std::uint8_t {
    on_disk,      // memory has no parameters of it
    reading,      // they are being read
    in_memory,    // memory has them
    handed_out,   // a worker computes with them
    gradient_in,  // some gradient of it has come, and waits for the others, or for its update
    updating,     // its update is under way
    writing,      // memory has the update, the disk does not
    updated,      // memory and disk have it
};
inline constexpr std::size_t kBlockViews = 8;

// `holds` is the number of workers that hold the block.
[[nodiscard]] constexpr BlockView view_of(const step::Block& block, schedule::WindowCache::State memory,
                                          std::uint32_t holds) {
    if (step::is_being_updated(block.stage)) return BlockView::updating;
    if (step::is_being_written(block.stage)) return BlockView::writing;
    if (step::is_updated(block.stage)) return BlockView::updated;
    const bool waits = step::is_undecided(block.stage) || step::is_updated_later(block.stage);
    if (waits || block.arrived > 0 || block.stale()) return BlockView::gradient_in;
    if (holds > 0) return BlockView::handed_out;
    if (block.owes()) return BlockView::writing;
    if (memory == schedule::WindowCache::State::reading) return BlockView::reading;
    return memory == schedule::WindowCache::State::resident ? BlockView::in_memory : BlockView::on_disk;
}

}  // namespace luwu::pipeline
