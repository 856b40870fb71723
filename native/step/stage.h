// The stages of an attempt at a step, and the verdict on it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "step/transition.h"

namespace luwu::step {

enum class Stage : std::uint8_t {
    collecting,  // workers begin, push and vote; or none has begun yet
    closing,     // all have voted: what was begun is finished
    prepared,    // one server of several: all is written, and somebody decides
    decided,     // somebody has
    recording,   // the commit record is being written
    restoring,   // what was updated is being taken back; then the step is rolled back
    redoing,     // the same, then it is updated again: it is clipped after all
};
inline constexpr std::size_t kStages = 7;

enum class StageEvent : std::uint8_t {
    all_voted,  // every vote counts, and no push is under way
    prepare,    // one server of several has written all that it has of the step
    decide,     // the last word on a prepared step has come
    record,     // the commit record begins to be written
    restore,    // the step is void, and its updates begin to be taken back
    redo,       // the step is clipped after all, and the same begins
    end,        // the workers are told how it ended
};
inline constexpr std::size_t kStageEvents = 7;

using StageTransition = Transition<Stage, StageEvent>;

// Every transition there is. An end without a record is that of a step whose updates follow it.
inline constexpr std::array kStageTransitions{
    StageTransition{Stage::collecting, StageEvent::all_voted, Stage::closing},
    StageTransition{Stage::closing, StageEvent::prepare, Stage::prepared},
    StageTransition{Stage::closing, StageEvent::record, Stage::recording},
    StageTransition{Stage::closing, StageEvent::restore, Stage::restoring},
    StageTransition{Stage::closing, StageEvent::redo, Stage::redoing},
    StageTransition{Stage::closing, StageEvent::end, Stage::collecting},
    StageTransition{Stage::prepared, StageEvent::decide, Stage::decided},
    StageTransition{Stage::decided, StageEvent::record, Stage::recording},
    StageTransition{Stage::decided, StageEvent::restore, Stage::restoring},
    StageTransition{Stage::decided, StageEvent::end, Stage::collecting},
    StageTransition{Stage::recording, StageEvent::end, Stage::collecting},
    StageTransition{Stage::restoring, StageEvent::end, Stage::collecting},
    StageTransition{Stage::redoing, StageEvent::end, Stage::collecting},
};

[[nodiscard]] constexpr std::optional<Stage> next_stage(Stage stage, StageEvent event) {
    return next_in(kStageTransitions, stage, event);
}

// Throws std::logic_error where the table has no row: an error of this code.
[[nodiscard]] inline Stage stage_after(Stage stage, StageEvent event) {
    if (const auto next = next_stage(stage, event)) return *next;
    throw std::logic_error("a step in stage " + std::to_string(static_cast<int>(stage)) + " met event " +
                           std::to_string(static_cast<int>(event)));
}

// Ascending: a later one replaces an earlier one.
enum class Verdict : std::uint8_t {
    good,        // nothing speaks against a commit
    not_finite,  // a gradient is not finite
    given_up,    // a worker, or whoever decided, wants the step rolled back
    lost,        // a worker that was in the step is lost: the attempt does not count, and is made again
};

}  // namespace luwu::step
