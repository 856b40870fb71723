"""The rules of the step machine, each with the code that it takes out.

A removal is a piece of a file of `native/step`, which stands there once, and what stands there instead.
"""

from __future__ import annotations

from kit.step_removal import Removal
from kit.step_rules_last_word import LAST_WORD

REMOVALS = (
    Removal(
        "a step is not begun while a place is left", "machine.cc",
        "if (const auto left = state_.members.left()) return fail(left_too_early(*left, state_.progress.step()));", "",
    ),
    Removal(
        "a step is not begun before the one before it is decided", "machine.cc",
        "if (state_.stage == Stage::prepared) {", "if (false) {",
    ),
    Removal(
        "a begin whose answer was lost is answered again", "machine.cc",
        "return !pushed && state.settings == settings;", "return false;",
    ),
    Removal(
        "a worker that has pushed does not begin again", "machine.cc",
        "return !pushed && state.settings == settings;", "return state.settings == settings;",
    ),
    Removal(
        "a step is not begun twice", "machine.cc",
        "if (state_.members.at(worker).standing != Standing::resting) {", "if (false) {",
    ),
    Removal(
        "all workers bring equal settings", "machine.cc",
        "} else if (state_.settings != settings) {", "} else if (false) {",
    ),
    Removal(
        "the run's first step decides whether there is a limit", "clipping.h", "if (limits_ && *limits_ != limited) {",
        "if (false) {",
    ),
    Removal(
        "memory is divided once", "machine.cc", "if (!chosen && state_.may_keep())", "if (state_.may_keep())",
    ),
    Removal(
        "a block is not pulled after its push", "machine.cc",
        "if (!state_.failed() && state_.blocks[block].came[stream]) {",
        "if (false) {",
    ),
    Removal("a block is not pushed twice", "machine.cc", "if (!in_step || entry.came[stream]) {", "if (!in_step) {"),
    Removal(
        "gradients of a step that was given up do not count", "machine.cc",
        "if (state_.abandoned()) {\n",
        "if (false) {\n",
    ),
    Removal(
        "a vote counts with its last push", "machine.cc",
        "if (state_.members.vote_is_due(stream)) count_vote(stream);", "",
    ),
    Removal(
        "a vote waits for its pushes", "members.cc",
        "return member.standing == Standing::voting && member.pushed >= member.needed;",
        "return member.standing == Standing::voting;",
    ),
    Removal("a second vote is refused", "machine.cc", "if (member.waits()) {", "if (false) {"),
    Removal(
        "a vote has no fewer pushes than the one before", "machine.cc",
        "member.standing != Standing::begun || (pushes && *pushes < member.at_last_vote)",
        "member.standing != Standing::begun",
    ),
    Removal(
        "what some have pushed is given back when a worker gives up", "machine.cc",
        "    return_unfinished();  // their workers may wait for them before they vote\n", "",
    ),
    Removal(
        "what is under way is dropped with one stream", "machine.cc", "        if (state_.awaits_epoch) return;\n", "",
    ),
    Removal(
        "with one stream all votes count the same pushes", "machine.cc",
        "const auto uneven = given_up ? std::nullopt : uneven_pushes(state_);",
        "const std::optional<std::string> uneven;",
    ),
    Removal(
        "with one stream votes wait for the sums", "machine.cc",
        "if (!given_up && state_.stream_pushes < state_.members.at(0).in_step) return;", "",
    ),
    Removal(
        "all workers push a block or none does", "agreement.cc", "if (arrived == 0 || arrived == streams) continue;",
        "continue;",
    ),
    Removal(
        "every trainable block is pushed", "agreement.cc",
        "if (!state.rules.blocks[block].trainable || state.blocks[block].arrived == streams) continue;", "continue;",
    ),
    Removal(
        "a gradient that is not finite voids the step", "machine.cc",
        "if (state_.verdict == Verdict::good) state_.verdict = Verdict::not_finite;", "",
    ),
    Removal(
        "an update waits for the record of the step before", "machine.cc",
        "if (!state_.owed) return update(block);", "return update(block);",
    ),
    Removal(
        "a gradient waits for the kept one that is still needed", "machine.cc",
        "} else if (state_.blocks[block].stale()) {", "} else if (false) {",
    ),
    Removal(
        "the end waits for blocks under way", "machine_end.cc", "if (state_.failed() || state_.busy_blocks > 0 ||",
        "if (state_.failed() ||",
    ),
    Removal(
        "at most one answered step is owed anything", "machine_end.cc",
        "if (state_.owed || state_.waits_for_point()) return;", "if (state_.waits_for_point()) return;",
    ),
    Removal(
        "the first decision counts", "machine.cc", "if (state_.failed() || state_.stage != Stage::prepared) return",
        "if (state_.failed() || (state_.stage != Stage::prepared && state_.stage != Stage::recording)) return",
    ),
    Removal(
        "squares that are not finite roll a step back", "machine.cc", "if (!commits || !finite)", "if (!commits)",
    ),
    Removal(
        "counts go back with what is taken back", "progress.h",
        "void taken_back(std::uint32_t block) { counts_[block] = committed_[block]; }",
        "void taken_back(std::uint32_t) {}",
    ),
    Removal(
        "the record is what counts go back to", "progress.h", "        committed_ = record.counts;\n", "",
    ),
    Removal(
        "a step that clipped is not speculated on", "clipping.h", "last_did_not_clip_ = !clips;",
        "last_did_not_clip_ = true;",
    ),
    Removal(
        "one server of several does not speculate", "clipping.h", "limited && last_did_not_clip_ && may_speculate_",
        "limited && last_did_not_clip_",
    ),
    Removal(
        "a step that is clipped after all is taken back", "machine_end.cc", "    if (!clips) return state_.rules",
        "    return state_.rules",
    ),
    Removal(
        "updates that waited begin", "machine_end.cc",
        "if (state_.blocks[block].stage == BlockStage::waiting_to_update) update(block);",
        "if (block != 0 && state_.blocks[block].stage == BlockStage::waiting_to_update) update(block);",
    ),
    Removal(
        "a kept gradient follows the owed update", "machine.cc",
        "if (entry.stage != BlockStage::waiting_to_keep || state_.failed()) return take();",
        "return take();",
    ),
    Removal(
        "the gradients of a step end with it", "machine_end.cc",
        "        entry.came.assign(entry.came.size(), false);\n", "",
    ),
    Removal(
        "the pushes of one stream are counted anew", "machine_end.cc", "    state_.stream_pushes = 0;\n", "",
    ),
    Removal(
        "the votes of a step are counted anew", "members.cc", "    voted_ = 0;\n", "",
    ),
    Removal(
        "who was told of a prepared step is not told again", "members.cc",
        "if (member.standing == Standing::voted && !member.ending)", "if (member.standing == Standing::voted)",
    ),
    Removal(
        "a vote that counts outlives its worker", "members.cc",
        "    if (member.standing == Standing::voted) {\n        member.pushed",
        "    if (false) {\n        member.pushed",
    ),
    Removal(
        "a place that is taken again is not left", "members.cc",
        "        member = {};\n    }\n    std::erase(left_, worker);\n", "        member = {};\n    }\n",
    ),
    Removal(
        "a worker does not leave others alone in a step", "machine.cc",
        "if (!state_.members.anyone_in_step()) return take();\n    return fail", "return take();\n    return fail",
    ),
    Removal(
        "a lost worker makes its attempt void", "machine.cc", "if (owes) abandon(Verdict::lost);", "",
    ),
    Removal(
        "with one stream, so does one that had not begun, or had voted", "state.h",
        "        if (rules.one_stream) return stage == Stage::collecting && members.anyone_in_step();\n", "",
    ),
    Removal(
        "with one stream, an attempt with all sums and votes is not void", "state.h",
        "return stage == Stage::collecting && members.anyone_in_step();", "return members.anyone_in_step();",
    ),
    Removal(
        "a worker that had not begun makes no attempt void", "state.h",
        "return members.at(worker).standing == Standing::begun || members.at(worker).standing == Standing::voting;",
        "return members.at(worker).standing != Standing::voted;",
    ),
    Removal(
        "a vote that counts is not void", "state.h",
        "return members.at(worker).standing == Standing::begun || members.at(worker).standing == Standing::voting;",
        "return members.at(worker).standing != Standing::resting;",
    ),
    Removal(
        "a lost worker is out of its step", "members.cc",
        "    if (member.standing != Standing::voted) member.standing = Standing::resting;\n    member.absent = true;\n",
        "    member.absent = true;\n",
    ),
    Removal(
        "a void attempt does not wait for who is lost", "state.h", "members.all_voted(verdict == Verdict::lost)",
        "members.all_voted(false)",
    ),
    Removal(
        "an attempt that is not void does", "state.h", "members.all_voted(verdict == Verdict::lost)",
        "members.all_voted(true)",
    ),
    Removal(
        "a void attempt has no number", "machine_end.cc", "        state_.progress.end_void();\n",
        "        state_.progress.end_rolled_back();\n",
    ),
    Removal(
        "void is more than given up", "machine.cc", "state_.verdict = std::max(state_.verdict, verdict);",
        "if (!before) state_.verdict = verdict;",
    ),
    Removal(
        "who joins is not absent", "members.cc", "        member.absent = false;\n", "",
    ),
    Removal(
        "after a failure workers are not heard", "machine.cc",
        "Actions Machine::push(std::uint32_t stream, std::uint32_t block) {\n    if (state_.failed()) return take();\n",
        "Actions Machine::push(std::uint32_t stream, std::uint32_t block) {\n",
    ),
    Removal(
        "after a failure what is owed goes on", "state.h",
        "return broken || (failure && !blocks[block].owes());", "return broken || failure;",
    ),
    Removal(
        "after a break-down it does not", "state.h", "return broken || (failure && !blocks[block].owes());",
        "return failure && !blocks[block].owes();",
    ),
    Removal(
        "a vote after a failure has no ending", "machine.cc",
        "        state_.members.forget_ending(worker);  // of the step before: this one has none\n", "",
    ),
    Removal(
        "a record is written once the last block is", "machine.cc",
        "must(awaited,", "must(true,",
    ),
    Removal(
        "where not every step is on the disk gradients are kept without a limit, too", "clipping.h",
        "return limits() || always_keeps_;", "return limits();",
    ),
    Removal(
        "and no step is speculated on", "state.cc", "clipping(!rules.prepares && rules.commit_points.is_each_step(),",
        "clipping(!rules.prepares,",
    ),
    Removal(
        "a step that is no commit point has no record", "machine_end.cc", "if (commits) owed.record", "owed.record",
    ),
    Removal(
        "a snapshot's step is a commit point", "settings.h",
        " || (for_snapshots > 0 && step % for_snapshots == 0);", ";",
    ),
    Removal(
        "when it is time the next step is a commit point", "machine_end.cc",
        "const bool commits = state_.point_is_due ||", "const bool commits =",
    ),
    Removal("and only that one", "machine.cc", "    state_.point_is_due = false;\n", ""),
    Removal(
        "a flush waits for what is owed", "machine_end.cc", "if (!state_.flush_is_due || state_.owed ||",
        "if (!state_.flush_is_due ||",
    ),
    Removal("and follows it", "machine_end.cc", "    try_flush();\n    if (state_.failed()) return;\n",
        "    if (state_.failed()) return;\n",
    ),
    Removal(
        "what is on the disk is not flushed", "machine_end.cc",
        "    if (state_.progress.durable_step() == state_.progress.step()) return;\n", "",
    ),
    Removal(
        "after a break-down nothing is flushed", "machine_end.cc",
        "state_.point || state_.broken) return;\n    state_.flush", "state_.point) return;\n    state_.flush",
    ),
    Removal(
        "commit points that follow are written beside later steps", "machine_end.cc",
        "    if (state_.owed->follows) {", "    if (false) {",
    ),
    Removal(
        "the next commit point waits for the one that is being written", "machine_end.cc",
        "if (state_.owed || state_.waits_for_point()) return;", "if (state_.owed) return;",
    ),
    Removal(
        "a commit point that follows is the one that was due", "machine_end.cc",
        "    state_.point_is_due = false;\n", "",
    ),
    Removal(
        "while one is being written none is due", "machine.cc", "if (!state_.point) state_.point_is_due = true;",
        "state_.point_is_due = true;",
    ),
    Removal(
        "a flush waits for the one that is being written", "machine_end.cc",
        "state_.owed || state_.point || state_.broken", "state_.owed || state_.broken",
    ),
    Removal(
        "and follows that", "machine.cc", "        try_flush();\n        try_end();\n", "        try_end();\n",
    ),
    Removal(
        "so does the step under way", "machine.cc", "        try_flush();\n        try_end();\n",
        "        try_flush();\n",
    ),
    Removal(
        "its record has the counts of its step", "progress.h", "committed_ = record.counts;", "committed_ = counts_;",
    ),
    Removal(
        "after a break-down it has none", "machine.cc",
        "    if (state_.broken) return take();\n    state_.point->recording", "    state_.point->recording",
    ),
    Removal(
        "only a commit point follows", "machine_end.cc", "owed.follows = commits && state_.rules.points_follow;",
        "owed.follows = state_.rules.points_follow;",
    ),
    Removal(
        "a flush has the counts of its step", "progress.h", "record.attempts = attempts_of_step_;",
        "record.attempts = attempts_;",
    ),
    Removal(
        "a flush is owed until it is on the disk", "machine_end.cc",
        "        state_.blocks[block].debt = Debt::record;\n", "",
    ),
    Removal(
        "a step is answered before it is on the disk", "state.h",
        "(!rules.tail.follows() && is_being_written(stage));", "is_being_written(stage);",
    ),
    Removal(
        "but not by one of several servers", "state.h", "(!rules.tail.follows() && is_being_written(stage));", "false;",
    ),
    Removal(
        "what is still written is owed", "machine_end.cc",
        "        } else if (is_being_written(entry.stage)) {\n            entry.debt = Debt::record;\n", "",
    ),
    Removal(
        "what was updated at once is not updated again", "machine_end.cc",
        "if (taken_back || !is_updated(entry.stage)) {", "if (true) {",
    ),
    Removal(
        "what was taken back is", "machine_end.cc", "if (taken_back || !is_updated(entry.stage)) {",
        "if (!is_updated(entry.stage)) {",
    ),
    Removal(
        "a step that owes nothing has its record written", "machine_end.cc", "    if (state_.owed) try_record();\n", "",
    ),
    Removal(
        "updates at once are counted in chunks", "state.h",
        "if (holds(blocks[block].stage)) chunks += rules.blocks[block].chunks;",
        "if (holds(blocks[block].stage)) ++chunks;",
    ),
    Removal(
        "what updates are behind with is kept", "state.h", "chunks_where(is_being_updated) < rules.tail.at_once",
        "true",
    ),
    Removal(
        "so is what comes before the record of the step before", "state.h",
        "(!owed && chunks_where(is_being_updated) < rules.tail.at_once)",
        "(chunks_where(is_being_updated) < rules.tail.at_once)",
    ),
    Removal(
        "no more is kept than memory has room for", "state.h",
        "return clipping.keeps_gradients() || kept_chunks() + rules.blocks[block].chunks <= rules.tail.room;",
        "return true;",
    ),
    Removal(
        "room is what owed updates still need, too", "state.h",
        "if (blocks[block].stale()) chunks += rules.blocks[block].chunks;", "",
    ),
    Removal(
        "with clipping there is room for all", "state.h", "return clipping.keeps_gradients() || kept_chunks()",
        "return kept_chunks()",
    ),
    Removal(
        "a block is not taken back while it is written", "machine.cc",
        "must(!is_being_written(state_.blocks[block].stage),", "must(true,",
    ),
    *LAST_WORD,
)  # fmt: skip
