#include "step/state.h"

namespace luwu::step {

State::State(Rules rules_, const store::CommitRecord& standing)
    : rules(std::move(rules_)),
      members(rules.workers),
      progress(standing),
      clipping(!rules.prepares && rules.commit_points.is_each_step(), !rules.commit_points.is_each_step()),
      blocks(rules.blocks.size()) {
    for (Block& block : blocks) block.came.assign(rules.streams(), false);
}

}  // namespace luwu::step
