// The workers of a run: who has begun a step, who has voted on it and who has left. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "step/ending.h"

namespace luwu::step {

enum class Standing : std::uint8_t {
    resting,  // in no step
    begun,
    voting,  // its vote came before some of its pushes, and counts when they have come
    voted,   // its vote counts
};

struct Member {
    Standing standing = Standing::resting;
    bool rolls_back = false;            // its vote
    std::uint64_t pushed = 0;           // blocks, since it joined; its own stream's
    std::uint64_t needed = 0;           // pushes before its vote counts
    std::uint64_t at_last_vote = 0;     // pushes, as its last vote had it
    std::uint64_t in_step = 0;          // pushes between its last two votes
    bool absent = false;                // lost, and nobody has taken its place
    std::optional<Ending> ending = {};  // of the step that it voted on last

    [[nodiscard]] bool waits() const { return standing == Standing::voting || standing == Standing::voted; }
};

class Members {
  public:
    explicit Members(std::uint32_t workers) : members_(workers) {}

    [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(members_.size()); }
    [[nodiscard]] const Member& at(std::uint32_t worker) const { return members_[worker]; }
    [[nodiscard]] bool anyone_in_step() const;
    [[nodiscard]] bool anyone_working() const;  // has begun, and its vote does not count yet
    [[nodiscard]] bool all_voted(bool without_absent) const;
    [[nodiscard]] bool all_absent() const;
    [[nodiscard]] std::optional<std::uint32_t> left() const;  // the last that left, and whom nobody replaced
    // A worker that did not push as many blocks in the step as the first.
    [[nodiscard]] std::optional<std::uint32_t> differs_from_first() const;

    void begin(std::uint32_t worker) { members_[worker].standing = Standing::begun; }
    void push(std::uint32_t worker) { ++members_[worker].pushed; }
    // `pushes`: those that come before the vote; none: they have.
    void vote(std::uint32_t worker, bool rolls_back, std::optional<std::uint64_t> pushes);
    [[nodiscard]] bool vote_is_due(std::uint32_t worker) const;
    void count_vote(std::uint32_t worker);
    void answer(const Ending& ending);  // to those who have voted and were not answered
    void forget_ending(std::uint32_t worker) { members_[worker].ending.reset(); }
    void end_step();
    // Another worker takes the place: its pushes are counted from zero. A vote that counts stays.
    void join(std::uint32_t worker);
    void leave(std::uint32_t worker);
    // Nobody is at this place until another worker joins. A vote that counts stays.
    void lose(std::uint32_t worker);

  private:
    std::vector<Member> members_;
    std::uint32_t voted_ = 0;          // members whose vote counts: a hundred thousand may vote in a simulation
    std::vector<std::uint32_t> left_;  // in their order
};

}  // namespace luwu::step
