// The end of a step, as its workers are told it.
#pragma once

#include <cstdint>

namespace luwu::step {

// End of a step. Prepared: all of it is written, and decide() has the last word. Not finite: rolled back because of a
// gradient, and nobody asked for it. Void: rolled back because a worker was lost; all make the same attempt again.
// One server of several also leaves the last word on a step that it rolls back to decide() or annul(): it may be void.
enum StepEnd : std::int64_t { kRolledBack = 0, kCommitted = 1, kPrepared = 2, kNotFinite = 3, kVoid = 4 };

inline constexpr double kNoSquares = -1;

struct Ending {
    StepEnd end = kRolledBack;
    // With clipping, the sum of squares of the averaged gradient; kNoSquares where nobody knows it. Of a prepared step
    // it is that of this server's blocks alone.
    double squares = kNoSquares;

    bool operator==(const Ending&) const = default;
};

}  // namespace luwu::step
