// Views of a block, as people who look at a run have them.
#include <doctest/doctest.h>

#include <array>
#include <set>

#include "pipeline/block_view.h"

using namespace luwu;
using pipeline::BlockView;
using pipeline::view_of;
using step::BlockStage;
using Memory = schedule::WindowCache::State;

namespace {

step::Block block_in(BlockStage stage, step::Debt debt = step::Debt::none, std::uint32_t arrived = 0) {
    step::Block block;
    block.stage = stage;
    block.debt = debt;
    block.arrived = arrived;
    return block;
}

}  // namespace

TEST_CASE("a block that no step works with is where memory has it") {
    const step::Block idle = block_in(BlockStage::collecting);
    CHECK(view_of(idle, Memory::absent, 0) == BlockView::on_disk);
    CHECK(view_of(idle, Memory::reading, 0) == BlockView::reading);
    CHECK(view_of(idle, Memory::resident, 0) == BlockView::in_memory);
    CHECK(view_of(idle, Memory::resident, 2) == BlockView::handed_out);
}

TEST_CASE("a step's work with a block goes before where memory has it") {
    const auto view = [](BlockStage stage) { return view_of(block_in(stage), Memory::resident, 1); };
    CHECK(view(BlockStage::waiting_to_update) == BlockView::gradient_in);
    CHECK(view(BlockStage::waiting_to_keep) == BlockView::gradient_in);
    CHECK(view(BlockStage::keeping) == BlockView::gradient_in);
    CHECK(view(BlockStage::kept) == BlockView::gradient_in);
    CHECK(view(BlockStage::updating) == BlockView::updating);
    CHECK(view(BlockStage::keeping_and_updating) == BlockView::updating);
    CHECK(view(BlockStage::writing) == BlockView::writing);
    CHECK(view(BlockStage::kept_and_writing) == BlockView::writing);
    CHECK(view(BlockStage::updated) == BlockView::updated);
    CHECK(view(BlockStage::kept_and_updated) == BlockView::updated);
    CHECK(view(BlockStage::returned) == BlockView::handed_out);
}

TEST_CASE("the first of several gradients is seen, and so is what a block owes the step before") {
    CHECK(view_of(block_in(BlockStage::collecting, step::Debt::none, 1), Memory::resident, 1) ==
          BlockView::gradient_in);
    CHECK(view_of(block_in(BlockStage::collecting, step::Debt::update), Memory::resident, 0) == BlockView::gradient_in);
    CHECK(view_of(block_in(BlockStage::collecting, step::Debt::record), Memory::resident, 0) == BlockView::writing);
    CHECK(view_of(block_in(BlockStage::collecting, step::Debt::record), Memory::resident, 1) == BlockView::handed_out);
}

TEST_CASE("every view can be seen") {
    std::set<BlockView> seen;
    for (std::size_t stage = 0; stage < step::kBlockStages; ++stage) {
        for (const Memory memory : {Memory::absent, Memory::reading, Memory::resident}) {
            for (const std::uint32_t holds : {0U, 1U}) {
                seen.insert(view_of(block_in(static_cast<BlockStage>(stage)), memory, holds));
            }
        }
    }
    CHECK(seen.size() == pipeline::kBlockViews);
}
